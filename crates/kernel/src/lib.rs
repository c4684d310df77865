//! The part of the kernel that uses no hardware, so that ordinary unit tests can run it.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod loader;
