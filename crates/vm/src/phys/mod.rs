//! Physical memory: frames, their descriptors, slabs of kernel objects, and the queues that order pages by age.
//!
//! - `descriptors`, [`page`]: one descriptor of 64 bytes for each frame. A page is a frame with an identity (object,
//!   index).
//! - [`frames`]: the frame allocator, with a magazine for each CPU, a depot and buddy lists for each memory domain, and
//!   the reserve.
//! - [`slab`]: typed caches over frames, and the heap that is made of them.
//! - [`queues`]: the active, inactive and laundry queues, each in many shards (lists with their own locks).
//!
//! This folder owns the state word of a page, and keeps the rule of its identity (C1). It uses the machine traits, and
//! does not know objects, maps or faults.

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
