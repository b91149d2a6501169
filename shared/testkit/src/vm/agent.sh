#!/bin/bash
# Runs scripts for the test outside: a line is a number and a script in base64; the answer is the number, the exit
# status, and output and complaints in base64.
# Nobody announces devices here, so nobody loads modules for them.
for module in virtio_console virtio_net overlay veth; do modprobe "$module"; done
for _ in {1..100}; do
  for name in /sys/class/virtio-ports/*/name; do
    if [ -e "$name" ] && [ "$(<"$name")" = bulkhead.port ]; then port=/dev/$(basename "$(dirname "$name")"); fi
  done
  if [ -c "${port:-}" ]; then break; fi
  sleep 0.1
done
exec 3<>"$port"
cd /root
work=/run/agent
mkdir -p "$work"
echo ready >&3
while IFS=' ' read -r -u 3 number script; do
  base64 -d <<<"$script" >"$work/script"
  bash "$work/script" >"$work/out" 2>"$work/err" </dev/null 3>&-
  status=$?
  echo "$number $status $(base64 -w0 "$work/out") $(base64 -w0 "$work/err")" >&3
done
