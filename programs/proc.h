// Numbers in files of /proc.
#pragma once
#include "report.h"
#include <fcntl.h>

static inline const char *contents(const char *path) {
    static char file[1 << 20];
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0, "%s", path);
    size_t length = 0;
    for (ssize_t n; (n = read(fd, file + length, sizeof file - 1 - length)) > 0;) length += n;
    close(fd);
    file[length] = 0;
    return file;
}

// The sum of the numbers behind `name` at the start of a line (blanks before it do not count), or -1.
static inline long row(const char *path, const char *name) {
    const char *at = contents(path);
    for (; at; at = strchr(at, '\n')) {
        at += strspn(at, "\n ");
        size_t length = strlen(name);
        if (strncmp(at, name, length) || !strchr(" :\t", at[length])) continue;
        long sum = 0, found = -1;
        const char *end = at + length + strspn(at + length, ": \t");
        for (char *next; strtol(end, &next, 10), next != end && *end != '\n'; end = next + strspn(next, " \t"))
            found = sum += strtol(end, NULL, 10);
        return found;
    }
    return -1;
}
