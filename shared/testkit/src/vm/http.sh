#!/bin/bash
# Prints the page of a port of this machine: http 10255 /pods. Fails unless the answer's status is 200.
exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 1
printf 'GET %s HTTP/1.0\r\nHost: localhost\r\n\r\n' "$2" >&3
IFS=' ' read -r -u 3 _ status _
while IFS= read -r -u 3 line && [ "$line" != $'\r' ]; do :; done
cat <&3
[ "$status" = 200 ]
