# Servers whose roots are made by scripts and tables that no package system runs here: users, directories, enabled
# modules, copied configurations. Each server starts from its package's own configuration and answers once.
. "$(dirname "$0")/lib.sh"
matches "the machine's id" "^[0-9a-f]{32}$" cat /etc/machine-id
same "records of logins" "664 root:utmp
660 root:utmp" stat -c '%a %U:%G' /run/utmp /var/log/btmp
talk() {
    local port=$1
    until_true 20 bash -c "exec 4<>/dev/tcp/127.0.0.1/$port"
    exec 4<>"/dev/tcp/127.0.0.1/$port"
    printf '%b' "$2" >&4
    timeout 20 cat <&4 | tr -d '\r'
    exec 4>&-
}
echo '<?php echo 6 * 7, extension_loaded("pdo") ? " pdo" : "", extension_loaded("ctype") ? " ctype" : "";' >/var/www/html/a.php
check "apache" apache2ctl start
check "apache listens" until_true 20 curl -s -o /dev/null http://127.0.0.1/
matches "apache's own page" "<title>Apache2 Debian Default Page" curl -s http://127.0.0.1/
same "PHP in apache, with its modules" "42 pdo ctype" curl -s http://127.0.0.1/a.php
same "PHP on the command line" "1" php -r 'echo extension_loaded("pdo");'
check "memcached" memcached -d -u memcache -P /run/memcached/pid
same "its answer" "STORED
VALUE a 0 2
42
END" talk 11211 'set a 0 0 2\r\n42\r\nget a\r\nquit\r\n'
check "dovecot" dovecot
matches "its greeting" "OK .*Dovecot" talk 143 'a logout\r\n'
same "dovecot's private directory" "700 root" stat -c '%a %U' /etc/dovecot/private
check "lighttpd's directories" sh -c 'for d in /run/lighttpd /var/cache/lighttpd/uploads; do [ "$(stat -c %U:%a $d)" = www-data:750 ] || exit 1; done'
check "mosquitto" mosquitto -d -c /etc/mosquitto/mosquitto.conf
publish() {
    until_true 20 mosquitto_pub -r -t a -m got && timeout 20 mosquitto_sub -C 1 -t a
}
same "its message" "got" publish
