# sshd with PAM: a key, a password, a wrong password, a terminal, records of logins. cron: jobs of the system and of a
# user. Both refuse every session if PAM cannot set the login of a process.
. "$(dirname "$0")/lib.sh"
# A key of RSA would take longer than all else.
check "keys of the host" ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key
useradd -m -s /bin/bash someone
same "password" "someone P" sh -c "echo someone:secret | chpasswd; passwd -S someone | cut -d' ' -f1,2"
mkdir -p /run/sshd /root/.ssh /home/someone/.ssh
ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id
cp /root/.ssh/id.pub /home/someone/.ssh/authorized_keys
chown -R someone: /home/someone/.ssh
: >/etc/motd
matches "sshd uses PAM" "^usepam yes" sshd -T
check "server starts" /usr/sbin/sshd -E /tmp/sshd.log
options="-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o NumberOfPasswordPrompts=1"
by_key() { ssh $options -i /root/.ssh/id someone@127.0.0.1 "$@" 2>/tmp/.errors; }
by_password() {
    local password=$1
    shift
    sshpass -p "$password" ssh $options -o PubkeyAuthentication=no someone@127.0.0.1 "$@" 2>/tmp/.errors
}
same "login with a key" "someone" by_key id -un
same "its exit status" "7" sh -c "ssh $options -i /root/.ssh/id someone@127.0.0.1 exit 7 2>/dev/null; echo \$?"
same "the login's user" "$(id -u someone)" by_key cat /proc/self/loginuid
same "login with a password" "someone" by_password secret id -un
check "no login with a wrong password" sh -c "! sshpass -p wrong ssh $options -o PubkeyAuthentication=no someone@127.0.0.1"
same "a large answer" "1000000" sh -c "ssh $options -i /root/.ssh/id someone@127.0.0.1 head -c 1000000 /dev/zero | wc -c"
on_terminal() { by_key -tt 'tty | sed s/[0-9]*$//; who | wc -l' </dev/null | tr -d '\r'; }
same "a terminal, and a record of the login" "/dev/pts/
1" on_terminal
matches "the record is kept" "^someone +pts/" last
same "sessions without an error" "0" grep -c "PAM: pam_open_session" /tmp/sshd.log

echo '* * * * * root id -un >/tmp/system' >/etc/cron.d/job
check "a user's table" sh -c "echo '* * * * * id -un >/tmp/own' | crontab -u someone -"
check "cron starts" cron
check "cron runs jobs" until_true 150 sh -c '[ -s /tmp/system ] && [ -s /tmp/own ]'
same "each as its user" "root
someone" cat /tmp/system /tmp/own
