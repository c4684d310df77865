//! Tests of this crate's calls.

mod ids;
mod messages;
mod posix;
mod refusals;
mod segments;
mod semaphores;

use crate::registry::PRIVATE;
use crate::test_host::{ME, TestHost};
use crate::{Error, Open};

/// Creates an object that its owner may read and write.
const NEW: Open = Open { create: true, exclusive: true, mode: 0o600 };
/// Finds an object by its key.
const FIND: Open = Open { create: false, exclusive: false, mode: 0 };
/// No signal arrives.
const QUIET: &dyn Fn() -> bool = &|| false;
