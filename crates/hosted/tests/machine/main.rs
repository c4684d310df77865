//! Tests of whole machines of each architecture: every part of the memory core over simulated page tables and TLBs.
//! They are one program, so that the core is compiled only once for all of them.

mod changes;
mod contiguous;
mod corruption;
mod devices;
mod failures;
mod frames;
mod hostile_pagers;
mod idle;
mod kernel_map;
mod kernel_tables;
mod misuse;
mod pmap;
mod roots;
mod roots_stress;
mod store_protection;
