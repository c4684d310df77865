//! What the core needs of hardware, one trait a file. Dispatch is static: a [`Vm`](crate::Vm) is generic over one
//! [`Machine`]. (Which CPU this is, staying on it, sleeping: those come from `quire_sync`'s hooks.)

mod phys;
mod pmap;

pub use phys::Phys;
pub use pmap::{Enter, Leaf, Pmap, Removed, Table};

/// A machine: RAM that can be reached, and page tables.
pub trait Machine: Phys + Sized + Send + Sync + 'static {
    /// The page tables of one address space.
    type Pmap: Pmap<Self>;

    /// Number of CPUs; `quire_sync::current_cpu()` is always below it.
    fn cpus(&self) -> usize;
}
