//! The types of sockets of this kernel. [`glue`](super::glue) implements their host.

use crate::Machine;
use crate::file::host::FileHost;
use crate::process::users::Charge;

/// The host of sockets: that of files.
pub struct SocketHost<M: Machine>(pub FileHost<M>);

impl<M: Machine> Clone for SocketHost<M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Machine> Copy for SocketHost<M> {}

/// A socket of this kernel.
pub type Socket<M> = quire_net::Socket<SocketHost<M>>;
/// The names of this kernel's sockets.
pub type Network<M> = quire_net::Network<SocketHost<M>>;

/// The charge to a user for files in messages.
pub struct InFlightCharge {
    _charge: Charge,
}

impl From<Charge> for InFlightCharge {
    fn from(charge: Charge) -> Self {
        InFlightCharge { _charge: charge }
    }
}
