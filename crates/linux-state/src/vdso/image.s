// The shared object that every program finds mapped (vDSO), as the bytes of its ELF file: headers, tables and code in
// one page.
//
// All references are differences of labels, so the image needs no relocation and works at any address. The code uses no
// stack and calls nothing, so one unwinding rule applies to all of its instructions. The clock page is the page before
// the image. `page.rs` describes its fields and the rules of its count.

    .pushsection .rodata.quire_vdso, "a", @progbits
    .balign 64
    .globl quire_vdso_image
    .hidden quire_vdso_image
quire_vdso_image:
.Lvdso:
    // ---- the file header: 64 bits, little-endian; a shared object for x86-64
    .ascii "\177ELF"
    .byte 2, 1, 1, 0
    .zero 8
    .short 3, 62
    .long 1
    .quad 0
    .quad .Lvdso_segments - .Lvdso
    .quad .Lvdso_sections - .Lvdso
    .long 0
    .short 64, 56, (.Lvdso_segments_end - .Lvdso_segments) / 56, 64
    .short (.Lvdso_sections_end - .Lvdso_sections) / 64, 11

    // ---- segments: the whole image, loaded once; the dynamic section; the index of the unwinding table
    .macro vdso_segment kind, flags, first, end, align
    .long \kind, \flags
    .quad \first - .Lvdso, \first - .Lvdso, \first - .Lvdso
    .quad \end - \first, \end - \first, \align
    .endm
.Lvdso_segments:
    vdso_segment 1, 5, .Lvdso, .Lvdso_end, 4096
    vdso_segment 2, 4, .Lvdso_dynamic, .Lvdso_dynamic_end, 8
    vdso_segment 0x6474e550, 4, .Lvdso_unwind_index, .Lvdso_unwind_index_end, 4
.Lvdso_segments_end:

    // ---- DT_HASH: one bucket, whose chain has all symbols
    .balign 8
.Lvdso_hash:
    .long 1, 11
    .long 1
    .long 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0
.Lvdso_hash_end:

    // ---- DT_GNU_HASH: one bucket that begins at symbol 1, one word of the Bloom filter, and the chain. Bit 0 marks
    // its last hash.
    .balign 8
.Lvdso_gnu_hash:
    .long 1, 1, 1, {filter_shift}
    .quad {filter}
    .long 1
    .long {hash_0}, {hash_1}, {hash_2}, {hash_3}, {hash_4}, {hash_5}, {hash_6}, {hash_7}, {hash_8}, {hash_9} | 1
.Lvdso_gnu_hash_end:

    // ---- dynamic symbols: the names that Linux has, and the names without the prefix as weak symbols
    .macro vdso_symbol name, info, first, end
    .long \name - .Lvdso_strings
    .byte \info, 0
    .short 10
    .quad \first - .Lvdso, \end - \first
    .endm
    .balign 8
.Lvdso_symbols:
    .zero 24
    vdso_symbol .Lvdso_name_clock_gettime, 0x12, .Lvdso_clock_gettime, .Lvdso_clock_gettime_end
    vdso_symbol .Lvdso_name_gettimeofday, 0x12, .Lvdso_gettimeofday, .Lvdso_gettimeofday_end
    vdso_symbol .Lvdso_name_time, 0x12, .Lvdso_time, .Lvdso_time_end
    vdso_symbol .Lvdso_name_getcpu, 0x12, .Lvdso_getcpu, .Lvdso_getcpu_end
    vdso_symbol .Lvdso_name_clock_getres, 0x12, .Lvdso_clock_getres, .Lvdso_clock_getres_end
    vdso_symbol .Lvdso_name_clock_gettime+7, 0x22, .Lvdso_clock_gettime, .Lvdso_clock_gettime_end
    vdso_symbol .Lvdso_name_gettimeofday+7, 0x22, .Lvdso_gettimeofday, .Lvdso_gettimeofday_end
    vdso_symbol .Lvdso_name_time+7, 0x22, .Lvdso_time, .Lvdso_time_end
    vdso_symbol .Lvdso_name_getcpu+7, 0x22, .Lvdso_getcpu, .Lvdso_getcpu_end
    vdso_symbol .Lvdso_name_clock_getres+7, 0x22, .Lvdso_clock_getres, .Lvdso_clock_getres_end
.Lvdso_symbols_end:

.Lvdso_strings:
    .byte 0
.Lvdso_name_clock_gettime:
    .asciz "__vdso_clock_gettime"
.Lvdso_name_gettimeofday:
    .asciz "__vdso_gettimeofday"
.Lvdso_name_time:
    .asciz "__vdso_time"
.Lvdso_name_getcpu:
    .asciz "__vdso_getcpu"
.Lvdso_name_clock_getres:
    .asciz "__vdso_clock_getres"
.Lvdso_name_file:
    .asciz "linux-vdso.so.1"
.Lvdso_name_version:
    .asciz "LINUX_2.6"
.Lvdso_strings_end:

    // ---- versions: the version of each symbol, then the definitions (of the file itself, and of Linux)
    .balign 2
.Lvdso_versions:
    .short 0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2
.Lvdso_versions_end:
    .balign 8
.Lvdso_definitions:
    .short 1, 1, 1, 1
    .long {file_hash}, 20, 28
    .long .Lvdso_name_file - .Lvdso_strings, 0
    .short 1, 0, 2, 1
    .long {version_hash}, 20, 0
    .long .Lvdso_name_version - .Lvdso_strings, 0
.Lvdso_definitions_end:

    .balign 8
.Lvdso_dynamic:
    .quad 14, .Lvdso_name_file - .Lvdso_strings
    .quad 4, .Lvdso_hash - .Lvdso
    .quad 0x6ffffef5, .Lvdso_gnu_hash - .Lvdso
    .quad 5, .Lvdso_strings - .Lvdso
    .quad 6, .Lvdso_symbols - .Lvdso
    .quad 10, .Lvdso_strings_end - .Lvdso_strings
    .quad 11, 24
    .quad 0x6ffffff0, .Lvdso_versions - .Lvdso
    .quad 0x6ffffffc, .Lvdso_definitions - .Lvdso
    .quad 0x6ffffffd, 2
    .quad 0, 0
.Lvdso_dynamic_end:

    // ---- the unwinding table and its index. It has one row, for the code.
    .balign 4
.Lvdso_unwind_index:
    .byte 1, 0x1b, 3, 0x3b
    .long .Lvdso_unwind - .
    .long 1
    .long .Lvdso_text - .Lvdso_unwind_index, .Lvdso_unwind_row - .Lvdso_unwind_index
.Lvdso_unwind_index_end:
    .balign 8
.Lvdso_unwind:
    .long .Lvdso_unwind_row - .Lvdso_unwind_rules
.Lvdso_unwind_rules:
    .long 0
    .byte 1
    .asciz "zR"
    // The code alignment is 1, the data alignment is -8, and the return address is column 16. One byte of augmentation
    // follows: addresses are relative and have four bytes.
    .byte 1, 0x78, 16, 1, 0x1b
    // The frame's address is RSP + 8, and the return address is stored 8 bytes below it.
    .byte 0x0c, 7, 8, 0x90, 1
    .balign 8
.Lvdso_unwind_row:
    .long .Lvdso_unwind_row_end - .Lvdso_unwind_row_start
.Lvdso_unwind_row_start:
    .long .Lvdso_unwind_row_start - .Lvdso_unwind
    .long .Lvdso_text - .
    .long .Lvdso_text_end - .Lvdso_text
    .byte 0
    .balign 8
.Lvdso_unwind_row_end:
    .long 0
.Lvdso_unwind_end:

    // ---- code
    //
    // R9 is the address of the clock page. If the count is odd, because the page is changing, the code makes the system
    // call. So it never waits for a thread that the kernel has preempted.

    // Computes the nanoseconds of the clock whose offset is at `offset` in RAX. Jumps to `otherwise` if `check` fails.
    // Changes RCX, RDX and R8.
    .macro vdso_read check, offset, otherwise
.Lvdso_again_\@:
    mov r8d, [r9 + {count}]
    test r8b, 1
    jnz \otherwise
    \check \otherwise
    // The TSC must not be read before the preceding loads.
    lfence
    rdtsc
    shl rdx, 32
    or rax, rdx
    sub rax, [r9 + {start}]
    mul qword ptr [r9 + {rate}]
    shrd rax, rdx, 32
    add rax, \offset
    cmp r8d, [r9 + {count}]
    jne .Lvdso_again_\@
    .endm

    // Jumps to `otherwise` unless programs may compute clock EDI, which is below 32.
    .macro vdso_check_edi otherwise
    mov ecx, [r9 + {clocks}]
    bt ecx, edi
    jnc \otherwise
    .endm

    // Jumps to `otherwise` unless programs may compute the time of day.
    .macro vdso_check_day otherwise
    test byte ptr [r9 + {clocks}], 1
    jz \otherwise
    .endm

    // Splits RAX into seconds (RDX) and nanoseconds (RCX). Changes RAX and R10. The quotient is `(RAX >> 9) / 5^9`,
    // computed as a product with 2^75 / 5^9, rounded up.
    .macro vdso_split
    mov rcx, rax
    shr rax, 9
    movabs r10, 0x44b82fa09b5a53
    mul r10
    shr rdx, 11
    imul rax, rdx, 1000000000
    sub rcx, rax
    .endm

    .balign 64, 0xcc
.Lvdso_text:
    // int clock_gettime(clockid_t clock, struct timespec *to)
.Lvdso_clock_gettime:
    lea r9, [rip + .Lvdso - 4096]
    mov edi, edi
    cmp edi, 31
    ja 2f
    vdso_read vdso_check_edi, [r9+rdi*8+{offsets}], 2f
    vdso_split
    mov [rsi], rdx
    mov [rsi + 8], rcx
    xor eax, eax
    ret
2:  mov eax, 228
    syscall
    ret
.Lvdso_clock_gettime_end:

    .balign 16, 0xcc
    // int gettimeofday(struct timeval *to, struct timezone *zone)
.Lvdso_gettimeofday:
    test rdi, rdi
    jz 3f
    lea r9, [rip + .Lvdso - 4096]
    vdso_read vdso_check_day, [r9+{offsets}], 2f
    vdso_split
    mov [rdi], rdx
    // Divides by 1000. The factor is 2^38 / 1000, rounded up, which gives exact results below 2^32.
    imul rcx, rcx, 274877907
    shr rcx, 38
    mov [rdi + 8], rcx
3:  test rsi, rsi
    jz 4f
    mov qword ptr [rsi], 0
4:  xor eax, eax
    ret
2:  mov eax, 96
    syscall
    ret
.Lvdso_gettimeofday_end:

    .balign 16, 0xcc
    // time_t time(time_t *to)
.Lvdso_time:
    lea r9, [rip + .Lvdso - 4096]
    vdso_read vdso_check_day, [r9+{offsets}], 2f
    vdso_split
    test rdi, rdi
    jz 3f
    mov [rdi], rdx
3:  mov rax, rdx
    ret
2:  mov eax, 201
    syscall
    ret
.Lvdso_time_end:

    .balign 16, 0xcc
    // int getcpu(unsigned *cpu, unsigned *node, void *unused)
    // The limit of the segment `cpu_selector`, which each CPU has of its own, is the number of the CPU.
.Lvdso_getcpu:
    mov ecx, [rip + .Lvdso - 4096 + {cpu_selector}]
    lsl eax, ecx
    jnz 2f
    test rdi, rdi
    jz 3f
    mov [rdi], eax
3:  test rsi, rsi
    jz 4f
    mov dword ptr [rsi], 0
4:  xor eax, eax
    ret
2:  mov eax, 309
    syscall
    ret
.Lvdso_getcpu_end:

    .balign 16, 0xcc
    // int clock_getres(clockid_t clock, struct timespec *to)
.Lvdso_clock_getres:
    lea r9, [rip + .Lvdso - 4096]
    cmp edi, 31
    ja 2f
    vdso_check_edi 2f
    test rsi, rsi
    jz 3f
    mov rax, [r9 + {resolution}]
    mov qword ptr [rsi], 0
    mov [rsi + 8], rax
3:  xor eax, eax
    ret
2:  mov eax, 229
    syscall
    ret
.Lvdso_clock_getres_end:
.Lvdso_text_end:

    // ---- sections, for tools
    .macro vdso_section name, kind, flags, first, end, link, info, align, entry
    .long \name - .Lvdso_section_names, \kind
    .quad \flags, \first - .Lvdso, \first - .Lvdso, \end - \first
    .long \link, \info
    .quad \align, \entry
    .endm
.Lvdso_section_names:
    .byte 0
.Lvdso_section_hash:
    .asciz ".hash"
.Lvdso_section_gnu_hash:
    .asciz ".gnu.hash"
.Lvdso_section_symbols:
    .asciz ".dynsym"
.Lvdso_section_strings:
    .asciz ".dynstr"
.Lvdso_section_versions:
    .asciz ".gnu.version"
.Lvdso_section_definitions:
    .asciz ".gnu.version_d"
.Lvdso_section_dynamic:
    .asciz ".dynamic"
.Lvdso_section_unwind_index:
    .asciz ".eh_frame_hdr"
.Lvdso_section_unwind:
    .asciz ".eh_frame"
.Lvdso_section_text:
    .asciz ".text"
.Lvdso_section_section_names:
    .asciz ".shstrtab"
.Lvdso_section_names_end:
    .balign 8
.Lvdso_sections:
    .zero 64
    vdso_section .Lvdso_section_hash, 5, 2, .Lvdso_hash, .Lvdso_hash_end, 3, 0, 8, 4
    vdso_section .Lvdso_section_gnu_hash, 0x6ffffff6, 2, .Lvdso_gnu_hash, .Lvdso_gnu_hash_end, 3, 0, 8, 0
    vdso_section .Lvdso_section_symbols, 11, 2, .Lvdso_symbols, .Lvdso_symbols_end, 4, 1, 8, 24
    vdso_section .Lvdso_section_strings, 3, 2, .Lvdso_strings, .Lvdso_strings_end, 0, 0, 1, 0
    vdso_section .Lvdso_section_versions, 0x6fffffff, 2, .Lvdso_versions, .Lvdso_versions_end, 3, 0, 2, 2
    vdso_section .Lvdso_section_definitions, 0x6ffffffd, 2, .Lvdso_definitions, .Lvdso_definitions_end, 4, 2, 8, 0
    vdso_section .Lvdso_section_dynamic, 6, 2, .Lvdso_dynamic, .Lvdso_dynamic_end, 4, 0, 8, 16
    vdso_section .Lvdso_section_unwind_index, 1, 2, .Lvdso_unwind_index, .Lvdso_unwind_index_end, 0, 0, 4, 0
    vdso_section .Lvdso_section_unwind, 1, 2, .Lvdso_unwind, .Lvdso_unwind_end, 0, 0, 8, 0
    vdso_section .Lvdso_section_text, 1, 6, .Lvdso_text, .Lvdso_text_end, 0, 0, 64, 0
    vdso_section .Lvdso_section_section_names, 3, 0, .Lvdso_section_names, .Lvdso_section_names_end, 0, 0, 1, 0
.Lvdso_sections_end:
.Lvdso_end:
    // The rest of the page. The assembler rejects an image that is longer than a page.
    .zero 4096 - (.Lvdso_end - .Lvdso)

    .purgem vdso_segment
    .purgem vdso_symbol
    .purgem vdso_read
    .purgem vdso_check_edi
    .purgem vdso_check_day
    .purgem vdso_split
    .purgem vdso_section
    .popsection
