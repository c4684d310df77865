# nginx and curl: files over HTTP and TLS, many clients, a new configuration, an orderly end. sqlite3: a write-ahead log
# and mapped pages, two processes.
. "$(dirname "$0")/lib.sh"
mkdir -p /tmp/www
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout /tmp/key.pem -out /tmp/cert.pem -days 10 -subj /CN=localhost 2>/dev/null
head -c 1000000 /dev/urandom >/tmp/www/large
echo hello >/tmp/www/index.html
cat >/tmp/nginx.conf <<'X'
worker_processes 2;
error_log /tmp/error.log;
pid /tmp/nginx.pid;
events { worker_connections 512; }
http {
    access_log /tmp/access.log;
    sendfile on;
    server {
        listen 8080 backlog=511;
        listen [::1]:8080;
        listen 8443 ssl;
        listen unix:/tmp/nginx.socket;
        ssl_certificate /tmp/cert.pem;
        ssl_certificate_key /tmp/key.pem;
        root /tmp/www;
        location /proxy/ { proxy_pass http://127.0.0.1:8080/; }
    }
}
X
check "configuration" nginx -t -c /tmp/nginx.conf
check "server starts" nginx -c /tmp/nginx.conf
same "page" "hello" curl -s http://localhost:8080/
same "IPv6" "hello" curl -s -g 'http://[::1]:8080/'
same "Unix socket" "hello" curl -s --unix-socket /tmp/nginx.socket http://x/
same "TLS" "hello" curl -s --cacert /tmp/cert.pem https://localhost:8443/
same "proxy" "hello" curl -s http://localhost:8080/proxy/index.html
large() { curl -sk "$1/large" | cmp - /tmp/www/large; }
check "large file" large http://127.0.0.1:8080
check "large file over TLS" large https://127.0.0.1:8443
same "range" "100" sh -c 'curl -s -r 1000-1099 http://127.0.0.1:8080/large | wc -c'
same "no file" "404" curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8080/none
same "no server" "7" sh -c 'curl -s http://127.0.0.1:9/; echo $?'
bench() {
    ab -q "$@" >/tmp/ab 2>&1
    grep -q '^Failed requests: *0$' /tmp/ab || { cat /tmp/ab; return 1; }
    figure requests "$(awk '/^Requests per second/ {print $4}' /tmp/ab)" requests/s
}
check "10,000 requests" bench -n 10000 -c 20 -k http://127.0.0.1:8080/index.html
check "2,000 connections" bench -n 2000 -c 50 http://127.0.0.1:8080/index.html
check "100 connections with TLS" bench -n 100 -c 5 https://127.0.0.1:8443/index.html
check "new configuration" nginx -c /tmp/nginx.conf -s reload
same "page after it" "hello" curl -s --retry 5 http://localhost:8080/
check "orderly end" nginx -c /tmp/nginx.conf -s quit
check "no process is left" until_true 20 sh -c '! pgrep nginx'
same "errors" "0" sh -c "grep -c -E 'crit|alert|emerg' /tmp/error.log"

cd /tmp || exit 1
same "write-ahead log" "wal" sqlite3 data.db "pragma journal_mode = wal"
sqlite3 data.db "create table t (i integer primary key, who text, data blob)"
writer() {
    for _ in 1 2 3 4 5; do
        sqlite3 -cmd '.timeout 20000' data.db "pragma mmap_size = 268435456; begin immediate;
            insert into t (who, data) select '$1', randomblob(1000) from (with recursive n(i) as (select 1 union all select i + 1 from n limit 200) select i from n); commit" >/dev/null || return 1
    done
}
two() {
    writer a & local first=$!
    writer b & local second=$!
    wait $first && wait $second
}
check "two writers" two
same "rows" "a|1000
b|1000" sqlite3 data.db "select who, count(*) from t group by who"
same "integrity" "ok" sqlite3 data.db "pragma integrity_check"
same "checkpoint" "0" sh -c 'sqlite3 data.db "pragma wal_checkpoint(truncate)" | cut -d"|" -f1'
