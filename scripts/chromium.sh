#!/usr/bin/env bash
# Puts a headless Chromium and its driver into the active virtual environment, for the tests of the gateway's page. Both
# come from package registries (npm, PyPI); `apt-get install chromium chromium-driver` is enough where it is allowed.
set -euo pipefail
folder="$VIRTUAL_ENV/share/chromium"
rm -rf "$folder"
mkdir -p "$folder"

# A build for servers without a desktop; the driver's major version must be the same.
npm pack --silent --pack-destination "$folder" @sparticuz/chromium@153.0.0 >/dev/null
python -m pip install --quiet --no-deps chromedriver-py==153.0.8010.52
tar --extract --gzip --strip-components 2 --directory "$folder" --file "$folder"/*.tgz package/bin
for packed in "$folder"/*.br; do
    node -e 'const [, from, to] = process.argv, fs = require("fs");
        fs.writeFileSync(to, require("zlib").brotliDecompressSync(fs.readFileSync(from)));' "$packed" "${packed%.br}"
done
for archive in "$folder"/*.tar; do
    tar --extract --directory "$folder" --file "$archive"
done
sed --in-place "s|/tmp/fonts|$folder/fonts|" "$folder/fonts.conf"
rm "$folder"/*.tgz "$folder"/*.br "$folder"/*.tar

driver=$(python -c 'import chromedriver_py; print(chromedriver_py.binary_path)')
chmod +x "$folder/chromium" "$driver"
for name in chromium chromedriver; do
    [ "$name" = chromium ] && program="$folder/chromium" || program="$driver"
    cat >"$VIRTUAL_ENV/bin/$name" <<END
#!/bin/sh
LD_LIBRARY_PATH="$folder/lib" FONTCONFIG_PATH="$folder" exec "$program" "\$@"
END
    chmod +x "$VIRTUAL_ENV/bin/$name"
    "$VIRTUAL_ENV/bin/$name" --version
done
