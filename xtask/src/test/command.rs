//! later
use super::{Context, verdict::Check}; use crate::failure::Result;
pub fn names(_c:&Context<'_>)->Result<Vec<String>>{Ok(vec![])}
pub fn run(_c:&Context<'_>,_d:&mut dyn FnMut(Check))->Result<()>{Ok(())}
