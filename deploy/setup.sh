#!/bin/sh
# What docker-compose.yml's services share in volumes, made where it is missing: API key and certificate.
# A certificate of your own: put tls.crt and tls.key into the volume `tls`, or mount a folder with them at /run/tls.
set -eu
umask 077

keep() { # whole or not at all: whoever reads it may read it at once
  cat >"$1.new"
  mv "$1.new" "$1"
}

key=/run/taskgate/api-key
if [ -n "${TASKGATE_API_KEY:-}" ]; then
  printf '%s\n' "$TASKGATE_API_KEY" | keep $key
elif [ ! -s $key ]; then
  python -c 'import secrets; print(secrets.token_urlsafe(32))' | keep $key
fi

cd /run/tls
if [ ! -s tls.crt ] || [ ! -s tls.key ]; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 -subj "/CN=$DOMAIN" \
    -addext "subjectAltName=DNS:$DOMAIN,DNS:localhost,DNS:nginx,IP:127.0.0.1,IP:::1" \
    -addext "extendedKeyUsage=serverAuth" -keyout tls.key.new -out tls.crt.new
  mv tls.key.new tls.key
  mv tls.crt.new tls.crt
fi
