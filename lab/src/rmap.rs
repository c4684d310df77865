//! The reverse mapping that backings replaced.

pub mod record_per_page;
