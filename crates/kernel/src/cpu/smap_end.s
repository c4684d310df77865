    .purgem CLAC
    .purgem STAC
