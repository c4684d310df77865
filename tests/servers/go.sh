# prometheus scrapes itself and a Go server, writes its mapped head files, is killed, and starts again with its data.
. "$(dirname "$0")/lib.sh"
mkdir -p /tmp/prometheus
cat >/tmp/prometheus.yml <<'X'
global: { scrape_interval: 3s, scrape_timeout: 3s }
scrape_configs:
  - { job_name: self, static_configs: [ { targets: [ "localhost:9090" ] } ] }
  - { job_name: node, static_configs: [ { targets: [ "localhost:9100" ] } ] }
X
prometheus-node-exporter --web.listen-address=localhost:9100 >/tmp/node.log 2>&1 &
node=$!
start() {
    prometheus --config.file=/tmp/prometheus.yml --storage.tsdb.path=/tmp/prometheus --web.listen-address=localhost:9090 >>/tmp/log 2>&1 &
    server=$!
    until_true 60 curl -sf http://localhost:9090/-/ready
}
value() { curl -s "http://localhost:9090/api/v1/query" --data-urlencode "query=$1" | sed -n 's/.*"value":\[[^,]*,"\([^"]*\)".*/\1/p'; }
reaches() { local v; v=$(value "$1"); [ -n "$v" ] && [ "${v%.*}" -ge "$2" ]; }
check "Go server" until_true 60 curl -sf http://localhost:9100/metrics -o /tmp/metrics
matches "CPUs are told" 'node_cpu_seconds_total\{cpu="1",mode="user"\}' cat /tmp/metrics
matches "sockets are told" "^node_sockstat_TCP_inuse [0-9]" cat /tmp/metrics
matches "memory is told" '^node_memory_MemTotal_bytes [12]\.[0-9]*e\+09' cat /tmp/metrics
check "prometheus starts" start
check "both are scraped" until_true 60 reaches 'sum(up)' 2
check "some samples" until_true 60 reaches 'sum(prometheus_tsdb_head_samples_appended_total)' 3000
check "mapped head file" test -s /tmp/prometheus/chunks_head -o -d /tmp/prometheus/chunks_head
before=$(value 'count_over_time(up{job="self"}[10m])')
kill -9 $server
wait $server 2>/dev/null
check "start after a kill" start
check "the data are kept" until_true 60 reaches 'count_over_time(up{job="self"}[10m])' "${before:-1}"
kill $server
check "orderly end" wait $server
if [ -n "$FIGURES" ]; then
    # Samples of 2,000 series, written to a new database.
    seq 2000 | sed 's/.*/{"__name__":"series","number":"&"}/' >/tmp/series.json
    { time -p promtool tsdb bench write --out=/tmp/written --metrics=2000 --scrapes=300 /tmp/series.json; } >/tmp/write.log 2>&1
    figure samples "$(sed -n 's/.*samples\/sec: *\([0-9.]*\).*/\1/p' /tmp/write.log)" samples/s
    figure samples_system "$(awk '/^sys/ {print $2}' /tmp/write.log)" s
    cat /tmp/write.log >&2
fi
kill $node
wait $node 2>/dev/null
same "no corruption" "0" grep -c -i 'corrupt\|panic' /tmp/log
