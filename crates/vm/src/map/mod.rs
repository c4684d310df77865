//! Maps: what an address space shows at which address.

pub mod tree;
