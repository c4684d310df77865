// The program that forkexec executes: as small as a program can be. Its status shows that it really ran.
int main(int argc, char **argv) {
    (void)argv;
    return 40 + argc;
}
