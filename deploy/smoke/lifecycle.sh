#!/usr/bin/env bash
# What the container exposes, how it starts, stops and says that it is broken, tried on the running stack (`docker compose
# up`, with the profiles `replicas` and `tls`, and REPLICAS=1 and TLS_FOLDER set, for compose or in `.env`).
#   lifecycle.sh [BASE_URL]     default: http://127.0.0.1:8080; run in the folder of docker-compose.yml
# Leaves the services stopped. Exit 0: everything is as promised.
set -euo pipefail
base=${1:-http://127.0.0.1:8080}
work=$(mktemp -d)
broken=''
trap '[ -z "$broken" ] || docker rm -f "$broken" >/dev/null; rm -rf "$work"' EXIT
fail() { echo "lifecycle: $*" >&2; exit 1; }

container=$(docker compose ps -q conche)
image=$(docker inspect -f '{{.Image}}' "$container")
# As compose has them, which reads `.env`, too: the base image, and the folder of the certificate.
taken=$(docker compose --profile tls config --format json | python3 -c 'import json, sys
services = json.load(sys.stdin)["services"]
folders = {volume["target"]: volume["source"] for volume in services["tls"]["volumes"]}
print(services["conche"]["build"]["args"]["PYTHON_IMAGE"], folders["/certificates"])')
python=${taken%% *}
certificates=${taken#* }

curl -fsS "$base/metrics" | docker compose exec -T prometheus promtool check metrics || fail 'promtool has remarks'
echo 'lifecycle: promtool has no remark on /metrics'
docker compose exec -T prometheus promtool test rules /etc/prometheus/alerts_test.yml >"$work/rules" 2>&1 || { cat "$work/rules"; fail 'an alert does not fire as it should'; }
echo 'lifecycle: each alert fires when it should, and not when it should not'

for profile in replicas tls milvus; do docker compose --profile "$profile" config --quiet; done
docker compose --env-file deploy/compose/milvus.env config --quiet

# What the image takes, layer by layer: at most 450 MB without the models, and 239 of them ours, so that it holds on bases
# of up to 211 MB. The official slim ones are smaller; the one here may be a larger stand-in.
docker history --format '{{.Size}} {{.CreatedBy}}' "$image" | grep -v '^0B ' | cut -c1-110
size=$(docker image inspect -f '{{.Size}}' "$image")
docker image inspect "$python" >/dev/null 2>&1 || docker pull --quiet "$python" >/dev/null  # what builds may keep it to itself
base_size=$(docker image inspect -f '{{.Size}}' "$python")
models=$(docker compose exec -T conche du -sb /opt/conche/models | cut -f1)
own=$((size - models - base_size))
[ "$own" -le 239000000 ] || fail "the image has $own bytes beside base and models; at most 239 MB"
[ $((size - models)) -le 450000000 ] || fail "the image has $((size - models)) bytes beside the models; at most 450 MB"
echo "lifecycle: the image has $((own / 1000000)) MB beside $((base_size / 1000000)) MB of the base and $((models / 1000000)) MB of models"

# The second engine is there and computes, for all that was left out of it.
if [ "$(uname -m)" = x86_64 ]; then
  found=$(docker compose exec -T -e CONCHE_ENGINE=openvino conche conche ner 'Ada Lovelace lived in London.')
  case $found in *London*LOC*) ;; *) fail "OpenVINO finds something else: $found" ;; esac
  echo 'lifecycle: OpenVINO runs the tagger'
fi

# Behind the proxies there are two services with one FAQ: what one takes in, both find.
proxy=${base%:*}:8081
entry='{"question": "What does the proxy cost?", "answer": "Nothing."}'
curl -fsS -X PUT -o /dev/null -H 'content-type: application/json' -d "$entry" "$proxy/faq/lifecycle/entries/proxy"
for _ in 1 2 3 4 5 6 7 8; do
  found=$(curl -fsS -H 'content-type: application/json' -d '{"query": "What does the proxy cost?", "collection": "lifecycle"}' "$proxy/search")
  case $found in *'"id":"proxy"'*) ;; *) fail "a service behind the proxy does not find what another took in: $found" ;; esac
done
for service in conche replica; do
  docker compose exec -T "$service" python -c "import http.client as h, json
c = h.HTTPConnection('127.0.0.1', 8080); c.request('GET', '/faq/lifecycle/entries/proxy'); r = c.getresponse(); assert r.status == 200, r.read()" \
    || fail "$service does not find what was taken in behind the proxy"
done
curl -fsS --cacert "$certificates/tls.crt" "https://localhost:8443/readyz" >/dev/null || fail 'no answer over https'
services=$(curl -fsS "${base%:*}:9090/api/v1/query" --data-urlencode 'query=count(up{job="conche"} == 1)' | grep -o '"[0-9]*"\]' | tr -dc 0-9)
[ "$services" = 2 ] || fail "Prometheus sees $services services"
expiry=$(date -d "$(openssl x509 -enddate -noout -in "$certificates/tls.crt" | cut -d= -f2)" +%s)
told=$(curl -fsS "${base%:*}:9090/api/v1/query" --data-urlencode 'query=conche_tls_certificate_expiry_timestamp_seconds{job="proxy"}' | grep -o '"[0-9]*"\]' | tr -dc 0-9)
[ "$told" = "$expiry" ] || fail "the proxy's certificate expires at $expiry, and Prometheus believes $told"
echo 'lifecycle: two services share their FAQ behind the proxy, https is served, Prometheus sees both'

# A shell as process 1 would keep SIGTERM to itself.
process=$(docker compose exec -T conche cat /proc/1/comm)
case $process in sh | bash | dash) fail "process 1 is $process" ;; esac
user=$(docker compose exec -T conche id -u)
[ "$user" = 10001 ] || fail "runs as user $user"
if docker compose exec -T conche touch /opt/conche/x 2>/dev/null; then fail 'the root file system can be written'; fi
docker compose exec -T conche touch /data/writable || fail 'the data volume cannot be written'
if docker compose exec -T conche python -c 'import torch' 2>/dev/null; then fail 'the image has torch'; fi
echo "lifecycle: process 1 is $process, user $user, read-only root, no torch"

# A request in work when the stop comes is answered, and the stop needs no kill. The request is as large as this
# machine does in about eight seconds: far below the deadline of a stop, far above the time to send it.
body() { python3 -c 'import json, sys; print(json.dumps({"inputs": [f"第{i}句 sentence" for i in range(int(sys.argv[1]))]}))' "$1"; }
embed() { curl -sS -o "$work/answer.json" -w "%{$1}" -m 60 -H 'content-type: application/json' --data-binary @- "$base/embed"; }
seconds=$(body 128 | embed time_total)
texts=$(python3 -c 'import sys; print(max(64, min(2048, int(128 * 8 / float(sys.argv[1])))))' "$seconds")
body "$texts" | embed http_code >"$work/status" &
request=$!
sleep 1
# Meanwhile callers of the proxy notice nothing: the other service is there.
: >"$work/through"
while [ ! -e "$work/stopped" ]; do
  curl -sS -o /dev/null -w '%{http_code}\n' -m 60 -H 'content-type: application/json' -d '{"inputs": "hello"}' "$proxy/embed" >>"$work/through" || true
done &
callers=$!
start=$SECONDS
docker compose stop -t 30 conche >/dev/null 2>&1
took=$((SECONDS - start))
touch "$work/stopped"
wait "$callers"
grep -q 200 "$work/through" || fail 'nothing came through the proxy'
if grep -v 200 "$work/through"; then fail 'a stop was noticed behind the proxy'; fi
echo "lifecycle: $(wc -l <"$work/through") requests through the proxy during the stop, all answered"
wait "$request" || fail 'the request in work lost its connection'
[ "$(cat "$work/status")" = 200 ] || fail "the request in work got $(cat "$work/status"): $(head -c 300 "$work/answer.json")"
vectors=$(python3 -c 'import json, sys; print(len(json.load(open(sys.argv[1]))))' "$work/answer.json")
[ "$vectors" = "$texts" ] || fail "the request in work got $vectors vectors for $texts texts"
code=$(docker inspect -f '{{.State.ExitCode}}' "$container")
case $code in 0 | 143) ;; *) fail "exit code $code after $took s" ;; esac
[ "$took" -lt 30 ] || fail "the stop took $took s"
echo "lifecycle: stop took $took s, exit code $code, the request of $texts texts was answered whole"

# One byte changed in a bundle: refused at start, or, if told to serve the rest, not ready and so unhealthy.
cp -R models "$work/models"
chmod -R a+rX "$work"
manifest=$(find "$work/models" -name manifest.json | sort | head -n 1)
python3 - "$(dirname "$manifest")/tokenizer.json" <<'PY'
import pathlib, sys
path = pathlib.Path(sys.argv[1])
data = bytearray(path.read_bytes())
data[len(data) // 2] ^= 1
path.write_bytes(data)
PY
set +e
docker run --rm --read-only --tmpfs /tmp -v "$work/models:/opt/conche/models:ro" "$image" >"$work/refusal" 2>&1
code=$?
set -e
[ "$code" -ne 0 ] || fail 'a changed bundle was served'
grep -q sha256 "$work/refusal" || fail "the refusal names no check: $(tail -n 3 "$work/refusal")"
broken=$(docker run -d --read-only --tmpfs /tmp -v "$work/models:/opt/conche/models:ro" -e CONCHE_ON_BUNDLE_ERROR=serve \
  --health-start-period 1s --health-interval 2s --health-retries 2 "$image")
for _ in $(seq 60); do
  state=$(docker inspect -f '{{.State.Health.Status}}' "$broken")
  [ "$state" != unhealthy ] || break
  sleep 1
done
[ "$state" = unhealthy ] || fail "health is $state with a changed bundle"
echo "lifecycle: a bundle with one byte changed is refused (exit $code), or unhealthy with CONCHE_ON_BUNDLE_ERROR=serve"

# No service is left: the alert goes all the way, and to whom it should.
docker compose stop -t 30 replica >/dev/null 2>&1
alert() { curl -fsS "${base%:*}:9093/api/v2/alerts?filter=alertname%3D%22ConcheDown%22&receiver=page" | grep -c '"state":"active"' || true; }
for _ in $(seq 120); do
  told=$(alert)
  [ "$told" = 0 ] || break
  sleep 1
done
[ "$told" != 0 ] || fail 'Alertmanager was told of no ConcheDown'
echo 'lifecycle: Alertmanager holds ConcheDown for the receiver "page"'
