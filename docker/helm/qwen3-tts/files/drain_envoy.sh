#!/bin/bash
# preStop of Envoy, which does not drain by itself: asks clients to connect elsewhere, and waits up to SECONDS until no
# stream is open. Arguments: SECONDS, and the admin port. Envoy's image has no HTTP client.
set -euo pipefail
limit=$1 port=${2:-9901}
admin() {
    exec 3<>"/dev/tcp/127.0.0.1/$port"
    printf '%s %s HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n' "$1" "$2" >&3
    cat <&3
    exec 3<&-
}
is_idle() { admin GET '/stats?filter=^http\.grpc\.downstream_rq_active$' | grep -q '^http\.grpc\.downstream_rq_active: 0'; }
# From now on each response ends its connection's use (GOAWAY), and /ready is 503.
admin POST /healthcheck/fail >/dev/null
# Time for clients to learn that the pod is gone.
sleep 5
until [ "$SECONDS" -ge "$limit" ] || is_idle; do
    sleep 0.5
done
