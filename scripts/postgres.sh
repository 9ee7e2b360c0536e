#!/usr/bin/env bash
# Puts PostgreSQL's programs initdb and postgres into the active virtual environment, for the tests of the voices'
# database: those that are installed, or else those of Debian's or Ubuntu's package, unpacked there. Needs no root.
set -euo pipefail
newest() {
    { find "$1/usr/lib/postgresql" -path '*/bin/postgres' 2>/dev/null || true; } | sort --version-sort | tail -n 1
}

postgres=$(newest "")
environment=''
if [ -z "$postgres" ]; then
    folder="$VIRTUAL_ENV/share/postgres"
    rm -rf "$folder"
    mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial"
    apt=(apt-get --quiet=2 -o "Dir::State::lists=$folder/lists" -o "Dir::Cache=$folder/cache" -o APT::Sandbox::User=root)
    "${apt[@]}" update
    # The package and all that it requires and this machine lacks, but for the compiler of queries, which is large.
    "${apt[@]}" --print-uris --yes --no-install-recommends install postgresql |
        sed -En "s/^'.*' ([^_]+)_.*\.deb .*/\1/p" | grep --invert-match --extended-regexp '^lib(llvm|z3)' >"$folder/names"
    (cd "$folder" && xargs "${apt[@]}" download <names)
    for package in "$folder"/*.deb; do
        dpkg --extract "$package" "$folder"
    done
    rm -rf "$folder"/*.deb "$folder/lists" "$folder/cache" "$folder/names"
    postgres=$(newest "$folder")
    [ -n "$postgres" ] || { echo "apt-get found no PostgreSQL" >&2 && exit 1; }
    libraries=$(find "$folder" -name '*.so.*' -printf '%h\n' | sort -u | paste -s -d :)
    environment="LD_LIBRARY_PATH='$libraries' "
fi

for name in initdb postgres; do
    cat >"$VIRTUAL_ENV/bin/$name" <<END
#!/bin/sh
${environment}exec "$(dirname "$postgres")/$name" "\$@"
END
    chmod +x "$VIRTUAL_ENV/bin/$name"
    "$VIRTUAL_ENV/bin/$name" --version
done
