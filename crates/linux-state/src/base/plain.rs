//! Types that may be copied to and from user memory byte by byte.

/// A type that may be copied to and from user memory byte by byte.
///
/// # Safety
/// Every bit pattern is a valid value of the type. The type has no padding, whose content could leak to user memory.
pub unsafe trait Plain: Copy + 'static {}

macro_rules! plain {
    ($($t:ty)*) => { $(
        // SAFETY: integers have no padding, and all their bit patterns are valid.
        unsafe impl Plain for $t {}
    )* };
}
plain!(u8 u16 u32 u64 i8 i16 i32 i64 usize isize);
// SAFETY: arrays have no padding between elements.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}
