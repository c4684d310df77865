//! A virtio console with one port, over the `virtio-drivers` crate's queues: bytes in both directions, in large pieces.
//!
//! Receiving: the device owns all empty buffers. A filled buffer stays with the driver until its bytes are read, so a
//! slow reader slows the sender. Sending: bytes are copied into buffers, and the device is notified once for all
//! buffers of a call. The device processes the queues by itself, and the driver never waits. The driver checks the
//! device's results (lengths, tokens).

use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, Ordering};
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::mmio::{MmioTransport, VirtIOHeader};
use virtio_drivers::transport::{DeviceType, Transport};
pub use virtio_drivers::{BufferDirection, Hal};

/// The number of queue entries in each direction.
const ENTRIES: usize = 16;
/// The number of pages of a receive buffer.
const RECEIVE_PAGES: usize = 1;
/// The number of pages of a send buffer. It is large, because the device handles each buffer in a separate step.
const SEND_PAGES: usize = 4;
const PAGE: usize = virtio_drivers::PAGE_SIZE;

const RECEIVE: u16 = 0;
const SEND: u16 = 1;
/// The only requested feature is VIRTIO_F_VERSION_1. Multiple ports, a size and the event index are not requested.
/// Without the event index, interrupts of the send queue can be off while there is room.
const FEATURES: u64 = 1 << 32;

/// The reason that a device cannot be used.
#[derive(Debug)]
pub enum ConsoleError {
    /// There is no virtio device at that address.
    Absent,
    /// The device is not a console, but has this type.
    Kind(DeviceType),
    /// The queues could not be set up.
    Queue(virtio_drivers::Error),
}

/// The buffers of one direction, each contiguous.
struct Buffers<const BYTES: usize> {
    memory: [NonNull<u8>; ENTRIES],
    /// The buffer of each queue token.
    of_token: [u8; ENTRIES],
}

impl<const BYTES: usize> Buffers<BYTES> {
    fn new<H: Hal>() -> Result<Self, ConsoleError> {
        let mut memory = [NonNull::dangling(); ENTRIES];
        for slot in &mut memory {
            let (physical, at) = H::dma_alloc(BYTES / PAGE, BufferDirection::Both);
            if physical == 0 {
                return Err(ConsoleError::Queue(virtio_drivers::Error::DmaError));
            }
            *slot = at;
        }
        Ok(Buffers { memory, of_token: [0; ENTRIES] })
    }
    /// The first `len` bytes of buffer `i`.
    ///
    /// # Safety
    /// No other code uses the buffer: the device does not own it, and no other slice of it exists.
    unsafe fn slice<'a>(&self, i: usize, len: usize) -> &'a mut [u8] {
        debug_assert!(len <= BYTES);
        // SAFETY: the buffer has that many bytes; the caller guarantees exclusive use. Buffers are never freed.
        unsafe { core::slice::from_raw_parts_mut(self.memory[i].as_ptr(), len) }
    }
}

/// The console. Its owner ensures that one user at a time accesses it.
pub struct Console<H: Hal> {
    transport: MmioTransport<'static>,
    receive: VirtQueue<H, ENTRIES>,
    send: VirtQueue<H, ENTRIES>,
    incoming: Buffers<{ RECEIVE_PAGES * PAGE }>,
    outgoing: Buffers<{ SEND_PAGES * PAGE }>,
    /// A ring of the buffers that the device has filled, with the oldest buffer first. Each element has the buffer's
    /// number, the number of its bytes, and the number of bytes already read.
    filled: [(u8, u32, u32); ENTRIES],
    filled_from: usize,
    filled_len: usize,
    /// `free` has a bit for each free send buffer. `lengths` has the number of bytes in each buffer that the device
    /// owns.
    free: u32,
    lengths: [u32; ENTRIES],
}

// SAFETY: the buffers and queues belong to the console, and any CPU may access the hardware.
unsafe impl<H: Hal> Send for Console<H> {}

impl<H: Hal> Console<H> {
    /// The console whose registers are mapped at `registers`.
    ///
    /// # Safety
    /// `registers` is a permanent uncached mapping of `len` bytes of a virtio-mmio device's registers, which only
    /// [`Line::acknowledge`] also uses.
    pub unsafe fn new(registers: NonNull<u8>, len: usize) -> Result<Self, ConsoleError> {
        let header = registers.cast::<VirtIOHeader>();
        // SAFETY: the caller vouches for a mapping of `len` bytes of the device's registers, which only this console
        // uses.
        let mut transport = unsafe { MmioTransport::new(header, len) }.map_err(|_| ConsoleError::Absent)?;
        match transport.device_type() {
            DeviceType::Console => {}
            other => return Err(ConsoleError::Kind(other)),
        }
        begin(&mut transport);
        let receive = VirtQueue::new(&mut transport, RECEIVE, false, false).map_err(ConsoleError::Queue)?;
        let mut send = VirtQueue::new(&mut transport, SEND, false, false).map_err(ConsoleError::Queue)?;
        send.set_dev_notify(false);
        let (incoming, outgoing) = (Buffers::new::<H>()?, Buffers::new::<H>()?);
        transport.finish_init();
        let mut console = Console {
            transport,
            receive,
            send,
            incoming,
            outgoing,
            filled: [(0, 0, 0); ENTRIES],
            filled_from: 0,
            filled_len: 0,
            free: u32::MAX >> (32 - ENTRIES),
            lengths: [0; ENTRIES],
        };
        for i in 0..ENTRIES {
            console.offer(i);
        }
        console.transport.notify(RECEIVE);
        Ok(console)
    }

    /// Gives receive buffer `i` to the device.
    fn offer(&mut self, i: usize) {
        // SAFETY: no other code uses the buffer, and it stays untouched until `pop_used` returns it.
        unsafe {
            let buffer = self.incoming.slice(i, RECEIVE_PAGES * PAGE);
            if let Ok(token) = self.receive.add(&[], &mut [buffer])
                && let Some(slot) = self.incoming.of_token.get_mut(token as usize)
            {
                *slot = i as u8;
            }
        }
    }

    /// Collects the buffers that the device has filled.
    fn collect(&mut self) {
        while self.filled_len < ENTRIES
            && let Some(token) = self.receive.peek_used()
            && let Some(&i) = self.incoming.of_token.get(token as usize)
        {
            // SAFETY: the driver gave the queue this buffer under this token. `of_token` names the buffer until the
            // driver pops it.
            let len = unsafe {
                let buffer = self.incoming.slice(i as usize, RECEIVE_PAGES * PAGE);
                self.receive.pop_used(token, &[], &mut [buffer])
            };
            match len {
                Ok(0) => self.offer(i as usize),
                Ok(len) => {
                    let at = (self.filled_from + self.filled_len) % ENTRIES;
                    self.filled[at] = (i, len.min((RECEIVE_PAGES * PAGE) as u32), 0);
                    self.filled_len += 1;
                }
                Err(_) => return,
            }
        }
    }

    /// Reads received bytes, up to the length of `into`. Returns their number.
    pub fn read(&mut self, into: &mut [u8]) -> usize {
        self.collect();
        let mut done = 0;
        let mut offered = false;
        while done < into.len() && self.filled_len > 0 {
            let (i, len, read) = self.filled[self.filled_from];
            let n = ((len - read) as usize).min(into.len() - done);
            // SAFETY: the driver owns a filled buffer until it offers it again.
            let bytes = unsafe { self.incoming.slice(i as usize, len as usize) };
            into[done..done + n].copy_from_slice(&bytes[read as usize..read as usize + n]);
            done += n;
            self.filled[self.filled_from].2 = read + n as u32;
            if read as usize + n == len as usize {
                self.filled_from = (self.filled_from + 1) % ENTRIES;
                self.filled_len -= 1;
                self.offer(i as usize);
                offered = true;
            }
        }
        if offered && self.receive.should_notify() {
            self.transport.notify(RECEIVE);
        }
        done
    }

    /// The number of bytes that [`read`](Self::read) would return now.
    pub fn unread(&mut self) -> usize {
        self.collect();
        (0..self.filled_len)
            .map(|k| self.filled[(self.filled_from + k) % ENTRIES])
            .map(|(_, len, read)| (len - read) as usize)
            .sum()
    }

    /// Takes back send buffers that the device has processed.
    fn reclaim(&mut self) {
        while let Some(token) = self.send.peek_used()
            && let Some(&i) = self.outgoing.of_token.get(token as usize)
        {
            // SAFETY: the driver gave the queue these bytes, with this length, under this token. The driver does not
            // reuse the buffer until the buffer is popped.
            let popped = unsafe {
                let buffer = self.outgoing.slice(i as usize, self.lengths[i as usize] as usize);
                self.send.pop_used(token, &[buffer], &mut [])
            };
            if popped.is_err() {
                return;
            }
            self.free |= 1 << i;
        }
    }

    /// Sends bytes from the front of `bytes`, as many as fit. Returns their number.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        self.reclaim();
        let mut done = 0;
        while done < bytes.len() && self.free != 0 {
            let i = self.free.trailing_zeros() as usize;
            let n = (bytes.len() - done).min(SEND_PAGES * PAGE);
            // SAFETY: the driver owns a free buffer; it stays untouched until `pop_used` returns it.
            let added = unsafe {
                let buffer = self.outgoing.slice(i, n);
                buffer.copy_from_slice(&bytes[done..done + n]);
                self.send.add(&[buffer], &mut [])
            };
            let Ok(token) = added else { break };
            if let Some(slot) = self.outgoing.of_token.get_mut(token as usize) {
                *slot = i as u8;
            }
            self.lengths[i] = n as u32;
            self.free &= !(1 << i);
            done += n;
        }
        if done > 0 && self.send.should_notify() {
            self.transport.notify(SEND);
        }
        done
    }

    /// Whether [`write`](Self::write) accepts any bytes now.
    pub fn writable(&mut self) -> bool {
        if self.free == 0 {
            // The interrupt is enabled before the last check, so that the driver does not miss room that appears
            // between these two steps.
            self.send.set_dev_notify(true);
            core::sync::atomic::fence(Ordering::SeqCst);
            self.reclaim();
        }
        if self.free != 0 {
            self.send.set_dev_notify(false);
        }
        self.free != 0
    }

    /// Whether the device has processed all sent bytes.
    pub fn drained(&mut self) -> bool {
        self.reclaim();
        self.free.count_ones() as usize == ENTRIES
    }
}

/// Resets the device, reads its features, and accepts the requested ones.
fn begin(transport: &mut MmioTransport<'static>) {
    use virtio_drivers::transport::DeviceStatus;
    transport.set_status(DeviceStatus::empty());
    transport.set_status(DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER);
    let taken = transport.read_device_features() & FEATURES;
    transport.write_driver_features(taken);
    transport.set_status(DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER | DeviceStatus::FEATURES_OK);
    transport.set_guest_page_size(PAGE as u32);
}

/// A device's interrupt line: two registers that only the interrupt handler uses.
pub struct Line(AtomicPtr<u32>);

impl Line {
    /// A line without a device.
    pub const fn new() -> Line {
        Line(AtomicPtr::new(core::ptr::null_mut()))
    }

    /// Connects the line to the device whose registers are mapped at `registers`.
    ///
    /// # Safety
    /// `registers` is a permanent uncached mapping of a virtio-mmio device's registers.
    pub unsafe fn connect(&self, registers: NonNull<u8>) {
        self.0.store(registers.as_ptr().cast(), Ordering::Release);
    }

    /// Acknowledges the device's interrupt. Returns false if the device did not interrupt.
    pub fn acknowledge(&self) -> bool {
        const STATUS: usize = 0x60 / 4;
        const ACKNOWLEDGE: usize = 0x64 / 4;
        let registers = self.0.load(Ordering::Acquire);
        if registers.is_null() {
            return false;
        }
        // SAFETY: `connect` was given the device's registers.
        unsafe {
            let status = registers.add(STATUS).read_volatile();
            if status != 0 {
                registers.add(ACKNOWLEDGE).write_volatile(status);
            }
            status != 0
        }
    }
}

impl Default for Line {
    fn default() -> Self {
        Self::new()
    }
}
