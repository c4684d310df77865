//! The atomics of the recording build: transparent wrappers that record each access.

use super::recorder::{AccessKind, note};
use core::fmt;
use core::sync::atomic as real;
pub use core::sync::atomic::Ordering;

/// Executes and records a fence.
#[track_caller]
pub fn fence(order: Ordering) {
    note(AccessKind::Fence, 0, 0);
    real::fence(order);
}

/// The methods that all atomics have, whatever type they hold.
macro_rules! common {
    ([$($generic:tt)*] $name:ty, $real:ty, $value:ty) => {
        const _: () = {
            assert!(size_of::<$name>() == size_of::<$real>() && align_of::<$name>() == align_of::<$real>());
        };
        common!(@methods [$($generic)*] $name, $real, $value);
    };
    (@methods [$($generic:tt)*] $name:ty, $real:ty, $value:ty) => {
        impl$($generic)* $name {
            /// An atomic that holds `value`.
            pub const fn new(value: $value) -> Self {
                Self(<$real>::new(value))
            }
            #[track_caller]
            #[inline]
            fn note(&self, kind: AccessKind) {
                note(kind, core::ptr::from_ref(self).addr(), size_of::<Self>());
            }
            /// Reads the value.
            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                self.note(AccessKind::Read);
                self.0.load(order)
            }
            /// Writes the value.
            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                self.note(AccessKind::Write);
                self.0.store(value, order)
            }
            /// Writes the value, and returns the old value.
            #[track_caller]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                self.note(AccessKind::ReadModifyWrite);
                self.0.swap(value, order)
            }
            /// Writes `new` if the atomic holds `current`.
            #[track_caller]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.note(AccessKind::ReadModifyWrite);
                self.0.compare_exchange(current, new, success, failure)
            }
            /// As [`compare_exchange`](Self::compare_exchange), but may fail although the atomic holds `current`.
            #[track_caller]
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.note(AccessKind::ReadModifyWrite);
                self.0.compare_exchange_weak(current, new, success, failure)
            }
            /// Replaces the value by the result of `f`. Retries when another CPU has changed the value, and fails when
            /// `f` returns `None`.
            #[track_caller]
            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                mut f: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut held = self.load(fetch);
                while let Some(next) = f(held) {
                    match self.compare_exchange_weak(held, next, set, fetch) {
                        Ok(old) => return Ok(old),
                        Err(now) => held = now,
                    }
                }
                Err(held)
            }
            /// The value of an atomic that the caller borrows exclusively.
            #[track_caller]
            pub fn get_mut(&mut self) -> &mut $value {
                self.note(AccessKind::Write);
                self.0.get_mut()
            }
            /// Takes the value out.
            pub fn into_inner(self) -> $value {
                self.0.into_inner()
            }
            /// The address of the value. Accesses through it are not recorded.
            pub const fn as_ptr(&self) -> *mut $value {
                self.0.as_ptr()
            }
        }
        impl$($generic)* fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
        impl$($generic)* Default for $name {
            fn default() -> Self {
                Self(<$real>::default())
            }
        }
        impl$($generic)* From<$value> for $name {
            fn from(value: $value) -> Self {
                Self::new(value)
            }
        }
    };
}

/// Read-modify-writes of one kind.
macro_rules! fetch {
    ($name:ty, $value:ty, $($method:ident: $effect:literal),*) => {
        impl $name {
            $(
                #[doc = concat!($effect, " Returns the old value.")]
                #[track_caller]
                pub fn $method(&self, value: $value, order: Ordering) -> $value {
                    self.note(AccessKind::ReadModifyWrite);
                    self.0.$method(value, order)
                }
            )*
        }
    };
}

macro_rules! integer {
    ($name:ident, $value:ty) => {
        #[doc = concat!("[`core::sync::atomic::", stringify!($name), "`], recorded.")]
        #[repr(transparent)]
        pub struct $name(real::$name);
        common!([] $name, real::$name, $value);
        fetch!(
            $name,
            $value,
            fetch_add: "Adds, wrapping around.",
            fetch_sub: "Subtracts, wrapping around.",
            fetch_and: "Keeps the bits that are set in `value`.",
            fetch_nand: "Inverts the bits that `value` and it have in common.",
            fetch_or: "Sets the bits of `value`.",
            fetch_xor: "Inverts the bits of `value`.",
            fetch_max: "Raises it to `value`.",
            fetch_min: "Lowers it to `value`."
        );
    };
}

integer!(AtomicU8, u8);
integer!(AtomicU16, u16);
integer!(AtomicU32, u32);
integer!(AtomicU64, u64);
integer!(AtomicUsize, usize);
integer!(AtomicI32, i32);
integer!(AtomicI64, i64);

/// [`core::sync::atomic::AtomicBool`], recorded.
#[repr(transparent)]
pub struct AtomicBool(real::AtomicBool);
common!([] AtomicBool, real::AtomicBool, bool);
fetch!(
    AtomicBool,
    bool,
    fetch_and: "Keeps it where `value` is true.",
    fetch_nand: "The opposite of `fetch_and`.",
    fetch_or: "Sets it where `value` is true.",
    fetch_xor: "Inverts it where `value` is true."
);

/// [`core::sync::atomic::AtomicPtr`], recorded.
#[repr(transparent)]
pub struct AtomicPtr<T>(real::AtomicPtr<T>);
const _: () = assert!(size_of::<AtomicPtr<()>>() == size_of::<real::AtomicPtr<()>>());
const _: () = assert!(align_of::<AtomicPtr<()>>() == align_of::<real::AtomicPtr<()>>());
common!(@methods [<T>] AtomicPtr<T>, real::AtomicPtr<T>, *mut T);
