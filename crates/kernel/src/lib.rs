//! The part of the kernel that uses no hardware, so that it is tested in an ordinary process.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod loader;
