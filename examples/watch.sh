#!/bin/sh
# A file for each object in ./objects, the token in ./token.
while true; do
  token=$(cat token 2>/dev/null); [ "$token" ] || rm -rf objects
  mkdir -p objects
  curl -sN --speed-limit 1 --speed-time 150 "http://localhost:8090/v1/watch/pods?transport=ndjson${token:+&resume=$token}" |
  jq -r --unbuffered '.object as {$metadata} | [.type, "\($metadata.namespace // "-")_\($metadata.name // "-")",
    $metadata.annotations["informerd.dev/resume"] // "-", (.object | tojson)] | join(" ")' |
  while read -r type file resume object; do
    case $type in
      ADDED | MODIFIED) printf '%s\n' "$object" > "objects/$file" ;;
      DELETED) rm -f "objects/$file" ;;
      RESET) rm -rf objects token; mkdir objects ;;
      BOOKMARK) printf '%s\n' "$resume" > token ;;
    esac
  done
  sleep 1
done
