//! Physical memory: frames, their descriptors, slabs of kernel objects, and the queues on which pages age.
//!
//! - `descriptors`, [`page`]: one descriptor of 64 bytes a frame; a page is a frame with an identity (object, index).
//! - [`frames`]: the allocator: magazines of CPUs, a depot and buddy lists of each memory domain, the reserve.
//! - [`slab`]: typed caches over frames, and the heap that is made of them.
//! - [`queues`]: the active, inactive and laundry queue, each in many shards.
//!
//! This folder owns the state word of a page, and keeps its identity (C1). It uses the machine traits; it knows no
//! object, map or fault.

pub(crate) mod boot;
pub(crate) mod config;
pub(crate) mod descriptors;
pub mod frames;
pub mod page;
pub(crate) mod physical;
pub mod queues;
pub mod slab;

pub use config::Config;
pub use physical::Physical;
