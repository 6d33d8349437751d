#!/bin/sh
# What docker-compose.yml's services share in volumes, made where it is missing: API key and certificate.
# `setup.sh replace`: the API key anew, as given or by chance; gateways and workers have the old one until they start again.
set -eu
umask 077

keep() { # whole or not at all: whoever reads it may read it at once
  cat >"$1.new"
  mv "$1.new" "$1"
}

key=/run/taskgate/api-key
if [ ! -s $key ] || [ "${1:-}" = replace ]; then
  given=${TASKGATE_API_KEY:-$(python -c 'import secrets; print(secrets.token_urlsafe(32))')}
  printf '%s\n' "$given" | keep $key
elif [ -n "${TASKGATE_API_KEY:-}" ] && [ "$TASKGATE_API_KEY" != "$(cat $key)" ]; then
  echo "TASKGATE_API_KEY is not the key in use: docs/containers.md says how to replace it" >&2
  exit 1
fi

# The name that it was made for stands beside it. A certificate of somebody's own is never here, but in TLS_DIR.
cd /run/tls
if [ ! -s tls.crt ] || [ ! -s tls.key ] || [ "$(cat made-for 2>/dev/null)" != "$DOMAIN" ]; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 -subj "/CN=$DOMAIN" \
    -addext "subjectAltName=DNS:$DOMAIN,DNS:localhost,DNS:nginx,IP:127.0.0.1,IP:::1" \
    -addext "extendedKeyUsage=serverAuth" -keyout tls.key.new -out tls.crt.new
  mv tls.key.new tls.key
  mv tls.crt.new tls.crt
  printf '%s\n' "$DOMAIN" | keep made-for
fi
