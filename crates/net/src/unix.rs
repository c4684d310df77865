//! Names of Unix sockets: inodes and abstract names, in one table.

use crate::address::{Address, Destination, Kind, Place};
use crate::endpoint::Endpoint;
use crate::host::Host;
use crate::network::{Name, NameEntry, Network};
use crate::table::{hash, mix};
use core::ptr;
use quire_fs::{FsError, Ident};
use quire_heap::Arc;

/// The number of names from which `bind` chooses: all of five hexadecimal digits.
const AUTOMATIC: u32 = 1 << 20;

impl Name {
    fn hash(&self) -> u64 {
        match self {
            Name::Inode(ident) => hash_of(*ident),
            Name::Abstract(_, name) => hash(name),
            Name::Port(_) | Name::Pending => 0,
        }
    }
}

fn hash_of(ident: Ident) -> u64 {
    mix(mix(ident.device) ^ ident.number)
}

impl<H: Host> Network<H> {
    /// The Unix socket at `to`, for a socket of `kind`. [`FsError::WrongType`] if the socket at an inode has another
    /// kind. An abstract name of another kind is another name.
    pub(crate) fn find_unix(&self, to: &Destination<'_>, kind: Kind) -> Result<Arc<Endpoint<H>>, FsError> {
        let (hash, is): (u64, &dyn Fn(&Name) -> bool) = match to {
            Destination::Inode(ident) => (hash_of(*ident), &|name| *name == Name::Inode(*ident)),
            Destination::Abstract(bytes) => {
                (hash(bytes), &|name| matches!(name, Name::Abstract(of, name) if *of == kind && name[..] == **bytes))
            }
            Destination::Inet(_) => return Err(FsError::WrongFamily),
        };
        let bucket = self.names.bucket(hash);
        let found = bucket.iter().find(|entry| is(&entry.name)).map(|entry| entry.endpoint.clone());
        let found = found.ok_or(FsError::Refused)?;
        if found.kind == kind { Ok(found) } else { Err(FsError::WrongType) }
    }
}

impl<H: Host> Endpoint<H> {
    /// Binds an unbound Unix socket to a name.
    pub(crate) fn bind_unix(this: &Arc<Self>, at: Place<'_, H::Node>) -> Result<(), FsError> {
        match at {
            Place::Path { path, ident, node } => {
                let address = Address::Path(Arc::try_copy(path)?);
                Endpoint::name_it(this, Name::Inode(ident), address, Some(node))
            }
            Place::Abstract(name) => {
                let name = Arc::try_copy(name)?;
                Endpoint::name_it(this, Name::Abstract(this.kind, name.clone()), Address::Abstract(name), None)
            }
            Place::Auto => Endpoint::name_automatically(this),
            Place::Inet(_) => Err(FsError::WrongFamily),
        }
    }

    /// Binds the socket to a free abstract name of five hexadecimal digits.
    fn name_automatically(this: &Arc<Self>) -> Result<(), FsError> {
        let start = this.network.host.random();
        for i in 0..AUTOMATIC {
            let number = start.wrapping_add(i) % AUTOMATIC;
            let digit = |at: u32| b"0123456789abcdef"[(number >> (4 * at)) as usize % 16];
            let name = Arc::try_copy(&[digit(4), digit(3), digit(2), digit(1), digit(0)])?;
            let address = Address::Abstract(name.clone());
            match Endpoint::name_it(this, Name::Abstract(this.kind, name), address, None) {
                Err(FsError::AddressInUse) => {}
                other => return other,
            }
        }
        Err(FsError::NoSpace)
    }

    fn name_it(this: &Arc<Self>, name: Name, address: Address, node: Option<H::Node>) -> Result<(), FsError> {
        {
            let mut state = this.state();
            if state.name.is_some() {
                return Err(FsError::Invalid);
            }
            state.name = Some(Name::Pending);
        }
        let entered = Endpoint::enter(this, &name);
        let mut state = this.state();
        match entered {
            Ok(()) => (state.name, state.local, state.node) = (Some(name), Some(address), node),
            Err(_) => state.name = None,
        }
        entered
    }

    fn enter(this: &Arc<Self>, name: &Name) -> Result<(), FsError> {
        let entry = NameEntry { name: name.clone(), endpoint: this.clone() };
        let mut bucket = this.network.names.bucket(name.hash());
        if bucket.iter().any(|other| other.name == *name) {
            drop(bucket);
            return Err(FsError::AddressInUse);
        }
        bucket.try_reserve(1)?;
        bucket.push_reserved(entry);
        Ok(())
    }

    /// Removes the endpoint's name from the table.
    pub(crate) fn forget_unix(&self, name: &Name) {
        self.network.names.remove(name.hash(), |entry| ptr::eq(&*entry.endpoint, self));
    }
}
