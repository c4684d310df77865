//! A virtio console with one port, over the `virtio-drivers` crate's queues: bytes in both directions, in large pieces.
//!
//! Receiving: all buffers are with the device; one that came back stays here until its bytes were read, so that a slow reader
//! holds the sender back. Sending: bytes are copied into buffers, and the device is told once for all that a call filled. The
//! device works through the queue by itself; nothing here waits. The device's answers (lengths, tokens) are checked.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, Ordering};
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::mmio::{MmioTransport, VirtIOHeader};
use virtio_drivers::transport::{DeviceType, Transport};
pub use virtio_drivers::{BufferDirection, Hal};

/// Queue entries in each direction.
const ENTRIES: usize = 16;
/// Pages of a receive buffer.
const RECEIVE_PAGES: usize = 1;
/// Pages of a send buffer: large, for each costs the device a turn.
const SEND_PAGES: usize = 4;
const PAGE: usize = virtio_drivers::PAGE_SIZE;

const RECEIVE: u16 = 0;
const SEND: u16 = 1;
/// VIRTIO_F_VERSION_1 is all that is asked for. No multiple ports, no size; no event index, so that interrupts of the send queue
/// can be off while there is room.
const FEATURES: u64 = 1 << 32;

/// Why a device cannot be used.
#[derive(Debug)]
pub enum ConsoleError {
    /// There is no virtio device at that place.
    Absent,
    /// It is not a console, but this kind of device.
    Kind(DeviceType),
    /// The queues could not be set up.
    Queue(virtio_drivers::Error),
}

/// Buffers of one direction, in one piece of memory for each.
struct Buffers<const BYTES: usize> {
    memory: [NonNull<u8>; ENTRIES],
    /// Which buffer a queue token stands for.
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
    /// Nobody else uses the buffer: not the device, and no other slice of it.
    unsafe fn slice<'a>(&self, i: usize, len: usize) -> &'a mut [u8] {
        debug_assert!(len <= BYTES);
        // SAFETY: the buffer has that many bytes; the caller answers for the rest. Buffers are never freed.
        unsafe { core::slice::from_raw_parts_mut(self.memory[i].as_ptr(), len) }
    }
}

/// The console. Its owner keeps users apart.
pub struct Console<H: Hal> {
    transport: MmioTransport<'static>,
    receive: VirtQueue<H, ENTRIES>,
    send: VirtQueue<H, ENTRIES>,
    incoming: Buffers<{ RECEIVE_PAGES * PAGE }>,
    outgoing: Buffers<{ SEND_PAGES * PAGE }>,
    /// Buffers that came back with bytes: number, how many bytes, how many of them were read; oldest first, a ring.
    filled: [(u8, u32, u32); ENTRIES],
    filled_from: usize,
    filled_len: usize,
    /// Send buffers that are free, and how many bytes each one that is with the device carries.
    free: u32,
    lengths: [u32; ENTRIES],
}

// SAFETY: the buffers and queues belong to the console; the hardware does not care which CPU talks to it.
unsafe impl<H: Hal> Send for Console<H> {}

impl<H: Hal> Console<H> {
    /// The console whose registers are mapped at `registers`.
    ///
    /// # Safety
    /// `registers` is an uncached mapping of `len` bytes of a virtio-mmio device's registers that nobody else uses but
    /// [`Line::acknowledge`], for ever.
    pub unsafe fn new(registers: NonNull<u8>, len: usize) -> Result<Self, ConsoleError> {
        let header = registers.cast::<VirtIOHeader>();
        // SAFETY: the caller vouches for a mapping of `len` bytes of the device's registers, which are used here alone.
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
        // SAFETY: the buffer is with nobody; it stays untouched until `pop_used` gives it back.
        unsafe {
            let buffer = self.incoming.slice(i, RECEIVE_PAGES * PAGE);
            if let Ok(token) = self.receive.add(&[], &mut [buffer])
                && let Some(slot) = self.incoming.of_token.get_mut(token as usize)
            {
                *slot = i as u8;
            }
        }
    }

    /// Takes buffers that the device has filled.
    fn collect(&mut self) {
        while self.filled_len < ENTRIES
            && let Some(token) = self.receive.peek_used()
            && let Some(&i) = self.incoming.of_token.get(token as usize)
        {
            // SAFETY: the driver gave the queue this buffer under this token. `of_token` names the buffer until the driver pops it.
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

    /// Reads what has come in, up to the length of `into`; returns how much.
    pub fn read(&mut self, into: &mut [u8]) -> usize {
        self.collect();
        let mut done = 0;
        let mut offered = false;
        while done < into.len() && self.filled_len > 0 {
            let (i, len, read) = self.filled[self.filled_from];
            let n = ((len - read) as usize).min(into.len() - done);
            // SAFETY: a filled buffer is with us until it is offered again.
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

    /// How much [`read`](Self::read) would give now.
    pub fn unread(&mut self) -> usize {
        self.collect();
        (0..self.filled_len)
            .map(|k| self.filled[(self.filled_from + k) % ENTRIES])
            .map(|(_, len, read)| (len - read) as usize)
            .sum()
    }

    /// Takes send buffers back that the device is done with.
    fn reclaim(&mut self) {
        while let Some(token) = self.send.peek_used()
            && let Some(&i) = self.outgoing.of_token.get(token as usize)
        {
            // SAFETY: the queue was given these bytes, with this length, under this token, and nothing else is sent from them
            // until it is popped.
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

    /// Sends bytes from the front of `bytes`, as many as find room; returns how many.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        self.reclaim();
        let mut done = 0;
        while done < bytes.len() && self.free != 0 {
            let i = self.free.trailing_zeros() as usize;
            let n = (bytes.len() - done).min(SEND_PAGES * PAGE);
            // SAFETY: a free buffer is with us; it stays untouched until `pop_used` gives it back.
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

    /// Whether [`write`](Self::write) takes anything now.
    pub fn writable(&mut self) -> bool {
        if self.free == 0 {
            // The interrupt is wanted before the last look, so that room which appears between the two is not missed.
            self.send.set_dev_notify(true);
            core::sync::atomic::fence(Ordering::SeqCst);
            self.reclaim();
        }
        if self.free != 0 {
            self.send.set_dev_notify(false);
        }
        self.free != 0
    }

    /// Whether the device has taken everything that was sent.
    pub fn drained(&mut self) -> bool {
        self.reclaim();
        self.free.count_ones() as usize == ENTRIES
    }
}

/// Resets the device, reads its features, and takes those that are wanted.
fn begin(transport: &mut MmioTransport<'static>) {
    use virtio_drivers::transport::DeviceStatus;
    transport.set_status(DeviceStatus::empty());
    transport.set_status(DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER);
    let taken = transport.read_device_features() & FEATURES;
    transport.write_driver_features(taken);
    transport.set_status(DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER | DeviceStatus::FEATURES_OK);
    transport.set_guest_page_size(PAGE as u32);
}

/// A device's interrupt line as its handler sees it: two registers that only the handler uses.
pub struct Line(AtomicPtr<u32>);

impl Line {
    /// No device yet.
    pub const fn new() -> Line {
        Line(AtomicPtr::new(core::ptr::null_mut()))
    }

    /// The line of the device whose registers are mapped at `registers`.
    ///
    /// # Safety
    /// `registers` is an uncached mapping of a virtio-mmio device's registers, for ever.
    pub unsafe fn connect(&self, registers: NonNull<u8>) {
        self.0.store(registers.as_ptr().cast(), Ordering::Release);
    }

    /// Tells the device that its interrupt was seen; false where it was not the one that interrupted.
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
