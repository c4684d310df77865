//! What reverse mapping by backings replaced.

pub mod record_per_page;
