//! later
use crate::{cli, places::Places, failure::Result}; pub fn command(_p:&Places,_o:&cli::Compare)->Result<u8>{Ok(0)}
