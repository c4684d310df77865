// System V message queues: each check holds on Linux and on Quire.
#include "ipc.h"

// Not every library has it.
#define COPY 040000

struct message {
    long type;
    char text[100];
};

static void send_message(int id, long type, const char *text) {
    struct message message = {.type = type};
    strcpy(message.text, text);
    CHECK(!msgsnd(id, &message, strlen(text), IPC_NOWAIT), "msgsnd");
}

static void receives(int id, long type, int flags, long got, const char *text) {
    struct message message = {0};
    ssize_t len = msgrcv(id, &message, sizeof message.text, type, flags | IPC_NOWAIT);
    CHECK(len == (ssize_t)strlen(text) && message.type == got && !memcmp(message.text, text, len), "got %zd %ld %s",
        len, message.type, message.text);
}

static void messages(void) {
    int id = msgget(KEY, IPC_CREAT | IPC_EXCL | 0600);
    CHECK(id >= 0 && msgget(KEY, 0) == id, "msgget");
    ANSWERS(EEXIST, msgget(KEY, IPC_CREAT | IPC_EXCL));
    struct message message = {.type = 1};
    ANSWERS(ENOMSG, msgrcv(id, &message, 10, 0, IPC_NOWAIT));
    message.type = 0;
    ANSWERS(EINVAL, msgsnd(id, &message, 10, 0));
    message.type = 1;
    ANSWERS(EINVAL, msgsnd(id, &message, 8193, 0));
    ANSWERS(EINVAL, msgsnd(id, &message, -1, 0));
    ANSWERS(EFAULT, msgsnd(id, NULL, 1, 0));
    ANSWERS(EINVAL, msgsnd(-1, &message, 1, 0));
    send_message(id, 5, "five"), send_message(id, 3, "three"), send_message(id, 4, "four"),
        send_message(id, 3, "again"), send_message(id, 9, "");
    struct msqid_ds status;
    CHECK(!msgctl(id, IPC_STAT, &status) && status.msg_qnum == 5 && status.__msg_cbytes == 18 &&
        status.msg_qbytes == 16384, "status");
    CHECK(status.msg_lspid == getpid() && !status.msg_lrpid && status.msg_stime && !status.msg_rtime, "status");
    receives(id, 4, 0, 4, "four");
    receives(id, 5, MSG_EXCEPT, 3, "three");
    receives(id, -4, 0, 3, "again");
    ANSWERS(ENOMSG, msgrcv(id, &message, 10, -4, IPC_NOWAIT));
    ANSWERS(E2BIG, msgrcv(id, &message, 3, 5, IPC_NOWAIT));
    CHECK(msgrcv(id, &message, 3, 5, IPC_NOWAIT | MSG_NOERROR) == 3 && !memcmp(message.text, "fiv", 3), "MSG_NOERROR");
    receives(id, 0, 0, 9, "");
    CHECK(!msgctl(id, IPC_STAT, &status) && !status.msg_qnum && !status.__msg_cbytes && status.msg_lrpid == getpid() &&
        status.msg_rtime, "status");
    // A copy leaves the message.
    send_message(id, 1, "first"), send_message(id, 2, "second");
    ANSWERS(EINVAL, msgrcv(id, &message, 10, 0, COPY));
    ANSWERS(EINVAL, msgrcv(id, &message, 10, 0, COPY | MSG_EXCEPT | IPC_NOWAIT));
    receives(id, 1, COPY, 2, "second");
    ANSWERS(ENOMSG, msgrcv(id, &message, 10, 2, COPY | IPC_NOWAIT));
    receives(id, 0, 0, 1, "first");
    struct msginfo info;
    CHECK(msgctl(0, IPC_INFO, (void *)&info) >= 0 && info.msgmax == 8192 && info.msgmnb == 16384 &&
        info.msgmni == 32000 && info.msgssz == 16 && info.msgseg == 0xffff, "IPC_INFO");
    CHECK(msgctl(0, MSG_INFO, (void *)&info) >= 0 && info.msgpool >= 1 && info.msgmap >= 1 && info.msgtql >= 6,
        "MSG_INFO");
    char line[300];
    FILE *list = fopen("/proc/sysvipc/msg", "r");
    bool found = false;
    while (fgets(line, sizeof line, list)) {
        long key, number, mode, bytes, count;
        if (sscanf(line, "%ld %ld %lo %ld %ld", &key, &number, &mode, &bytes, &count) == 5 && number == id)
            found = key == KEY && mode == 0600 && bytes == 6 && count == 1;
    }
    fclose(list);
    CHECK(found, "no line");
    ANSWERS(0, msgctl(id, IPC_RMID, NULL));
    ANSWERS(EINVAL, msgsnd(id, &message, 1, 0));
}

struct receive {
    int id;
    long type;
    size_t most;
    int error;
    ssize_t len;
};

static void *receives_late(void *of) {
    struct receive *receive = of;
    struct message message;
    receive->len = msgrcv(receive->id, &message, receive->most, receive->type, 0);
    receive->error = receive->len < 0 ? errno : 0;
    return NULL;
}

static char large[8 + 8192] = {1};

static void *sends_late(void *of) {
    struct receive *send = of;
    send->error = msgsnd(send->id, large, send->most, 0) ? errno : 0;
    return NULL;
}

static void sleepers_at_queues(void) {
    int id = queue();
    struct receive two = {id, 2, 100, -1, 0}, small = {id, 1, 2, -1, 0}, any = {id, 0, 100, -1, 0};
    pthread_t threads[3] = {begin(receives_late, &two)};
    until_asleep(0);
    threads[1] = begin(receives_late, &small);
    until_asleep(0);
    threads[2] = begin(receives_late, &any);
    until_asleep(0);
    // Too long for the first that wants it, which gets E2BIG; the next gets it.
    send_message(id, 1, "long");
    CHECK(!pthread_join(threads[1], NULL) && small.error == E2BIG, "E2BIG: %d", small.error);
    CHECK(!pthread_join(threads[2], NULL) && !any.error && any.len == 4, "any: %d", any.error);
    send_message(id, 2, "x");
    CHECK(!pthread_join(threads[0], NULL) && !two.error && two.len == 1, "two: %d", two.error);
    // A full queue.
    struct msqid_ds status;
    ANSWERS(0, msgsnd(id, large, 8192, 0));
    ANSWERS(0, msgsnd(id, large, 8000, 0));
    ANSWERS(EAGAIN, msgsnd(id, large, 8192, IPC_NOWAIT));
    struct receive first = {id, 0, 8192, -1, 0};
    threads[0] = begin(sends_late, &first);
    until_asleep(0);
    CHECK(first.error == -1 && msgrcv(id, large, 8192, 0, 0) == 8192, "it did not wait");
    CHECK(!pthread_join(threads[0], NULL) && !first.error, "send: %d", first.error);
    CHECK(!msgctl(id, IPC_STAT, &status) && status.msg_qnum == 2 && status.__msg_cbytes == 16192, "status");
    handle(SIGUSR1, SA_RESTART);
    pid_t child = sender(SIGUSR1);
    ANSWERS(EINTR, msgsnd(id, large, 8192, 0));
    ended(child);
    child = sender(SIGUSR1);
    ANSWERS(EINTR, msgrcv(id, large, 8192, 77, 0));
    ended(child);
    // A larger queue lets a sender go on.
    first.error = -1;
    threads[0] = begin(sends_late, &first);
    until_asleep(0);
    status.msg_qbytes = 30000;
    write_setting("msgmnb", "30000");
    ANSWERS(0, msgctl(id, IPC_SET, &status));
    write_setting("msgmnb", "16384");
    CHECK(!pthread_join(threads[0], NULL) && !first.error, "send: %d", first.error);
    // The removal ends all waits.
    struct receive never = {id, 77, 100, -1, 0};
    first.error = -1;
    threads[0] = begin(sends_late, &first), threads[1] = begin(receives_late, &never);
    until_asleep(0);
    ANSWERS(0, msgctl(id, IPC_RMID, NULL));
    CHECK(!pthread_join(threads[0], NULL) && !pthread_join(threads[1], NULL), "join");
    CHECK(first.error == EIDRM && never.error == EIDRM, "EIDRM: %d %d", first.error, never.error);
}

static void many_messages(void) {
    int id = queue();
    pid_t children[3];
    for (int i = 0; i < 3; i++) {
        children[i] = fork();
        if (children[i]) continue;
        for (int n = 0; n < 3000; n++) {
            struct { long type; int n; char rest[96]; } message = {i + 1, n, ""};
            CHECK(!msgsnd(id, &message, 4 + n % 97, 0), "msgsnd");
        }
        _exit(0);
    }
    int next[3] = {0};
    for (int n = 0; n < 9000; n++) {
        struct { long type; int n; char rest[96]; } message;
        ssize_t len = msgrcv(id, &message, 100, n % 2 ? 0 : -3, 0);
        CHECK(len >= 4 && message.type >= 1 && message.type <= 3, "msgrcv");
        CHECK(message.n == next[message.type - 1]++ && len == 4 + message.n % 97, "message %d of %ld", message.n,
            message.type);
    }
    for (int i = 0; i < 3; i++) CHECK(!ended(children[i]), "child");
    ANSWERS(0, msgctl(id, IPC_RMID, NULL));
}

static const struct check checks[] = {
    {"messages", messages},
    {"sleepers_at_queues", sleepers_at_queues},
    {"many_messages", many_messages},
};

int main(int argc, char **argv) {
    parse_options(argc, argv, NULL);
    run_checks(checks, sizeof checks / sizeof *checks);
    return 0;
}
