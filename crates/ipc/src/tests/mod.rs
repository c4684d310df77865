//! Tests of the calls.

mod ids;
mod messages;
mod posix;
mod refusals;
mod segments;
mod semaphores;

use crate::registry::PRIVATE;
use crate::test_host::{ME, TestHost};
use crate::{Error, Open};

/// Makes an object that its owner reads and writes.
const NEW: Open = Open { create: true, exclusive: true, mode: 0o600 };
/// Finds an object by its key.
const FIND: Open = Open { create: false, exclusive: false, mode: 0 };
/// No signal comes.
const QUIET: &dyn Fn() -> bool = &|| false;
