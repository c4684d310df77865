    // Included by each block of assembly that needs them; the block ends with smap_end.s, so that blocks can be
    // assembled together or apart.
    //
    // "clac" and "stac", three-byte no-operations until they are patched in at boot.
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
