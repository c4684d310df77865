//! The ids of netlink sockets, to which replies are addressed.

use quire_fs::FsError;
use quire_heap::{Map, SpareEntry};
use quire_sync::{Rank, SpinLock};

/// The netlink ids in use.
pub struct NetlinkPorts {
    used: SpinLock<Map<u32, ()>>,
}

impl NetlinkPorts {
    /// A table without ids.
    pub(crate) fn new() -> Self {
        NetlinkPorts { used: SpinLock::new(Rank::SOCKET_NAMES, Map::new()) }
    }

    /// Allocates the id `port`. [`FsError::AddressInUse`] if another socket has it.
    pub fn take(&self, port: u32) -> Result<(), FsError> {
        let memory = SpareEntry::try_new()?;
        let mut used = self.used.lock();
        if used.contains_key(&port) {
            return Err(FsError::AddressInUse);
        }
        used.insert(memory, port, ());
        Ok(())
    }

    /// Allocates the id `wish`. If it is in use, allocates a free id with the highest bit set; the search starts at
    /// `random`.
    pub fn take_free(&self, wish: u32, random: u32) -> Result<u32, FsError> {
        const HIGH: u32 = 1 << 31;
        let memory = SpareEntry::try_new()?;
        let mut used = self.used.lock();
        let port = match used.contains_key(&wish) {
            false => wish,
            // The loop tries one id more than ids are in use, so it finds a free id.
            true => (0..=used.len() as u32)
                .map(|n| random.wrapping_add(n) | HIGH)
                .find(|port| !used.contains_key(port))
                .ok_or(FsError::AddressInUse)?,
        };
        used.insert(memory, port, ());
        Ok(port)
    }

    /// Frees the id `port`.
    pub fn put(&self, port: u32) {
        let gone = self.used.lock().take(&port);
        drop(gone);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_socket_gets_its_process_id_or_a_negative_number() {
        let ports = NetlinkPorts::new();
        assert_eq!(ports.take_free(7, 1), Ok(7));
        assert_eq!(ports.take_free(7, u32::MAX), Ok(u32::MAX));
        assert_eq!(ports.take_free(7, u32::MAX), Ok(1 << 31));
        assert_eq!(ports.take(7), Err(FsError::AddressInUse));
        ports.put(7);
        assert_eq!(ports.take(7), Ok(()));
    }
}
