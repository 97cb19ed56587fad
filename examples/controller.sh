#!/bin/sh
# Keeps a file with the phase of each pod in ./pods. Start as many as you like: each pod has one worker at a time.
url=${INFORMERD_URL:-http://localhost:8090}/v1/queues/pod-files
spec='{"watch": [{"resource": "pods", "changed": "status.phase"}], "leaseSeconds": 10, "maxAttempts": 20}'

call() { # METHOD PATH JSON
  curl -sS --max-time 60 --fail-with-body -X "$1" -H 'Content-Type: application/json' -d "$3" "$url$2"
}

reconcile() { # FILE PHASE; no phase if the pod is deleted
  if [ -z "$2" ]; then rm -f "pods/$1"; return; fi
  printf '%s\n' "$2" > ".$1.$$" && mv ".$1.$$" "pods/$1"
}

mkdir -p pods
while true; do
  # One key at a time: each request starts a process, and amid ten keys the leases of the last ones could run out.
  if ! items=$(call POST /lease '{"max": 1, "waitSeconds": 20}'); then
    # 404: after a restart, informerd does not have the queues of its clients.
    call PUT '' "$spec" > answer.$$ 2>&1 || { cat answer.$$; sleep 1; }
    rm -f answer.$$
    continue
  fi
  printf '%s' "$items" | jq -r '.items[] | "\(.lease) \(.namespace)_\(.name) \(.object.status.phase // "")"' |
  while read -r lease file phase; do
    if reconcile "$file" "$phase"; then
      call POST /done "{\"lease\": \"$lease\"}" > /dev/null # 409: too late, the lease has run out
    else
      call POST /retry "{\"lease\": \"$lease\", \"error\": \"cannot write $file\"}" > /dev/null
    fi
  done
done
