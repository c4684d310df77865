//! The reverse mapping that backings have replaced.

pub mod record_per_page;
