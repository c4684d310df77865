    // Defines the macros CLAC and STAC for each block of assembly that includes this file. The block ends with
    // smap_end.s, so that blocks can be assembled together or apart.
    //
    // Each macro emits a three-byte no-operation. Boot replaces it by "clac" or "stac" if the CPU has SMAP.
    .macro CLAC
    771: .byte 0x0f, 0x1f, 0x00
    .pushsection .smap_sites, "a"
    .quad 771b
    .quad 0xca010f
    .popsection
    .endm
    .macro STAC
    772: .byte 0x0f, 0x1f, 0x00
    .pushsection .smap_sites, "a"
    .quad 772b
    .quad 0xcb010f
    .popsection
    .endm
