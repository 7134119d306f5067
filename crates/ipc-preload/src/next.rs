//! The functions that this library stands in front of.
//!
//! They are looked up once, when the library is loaded: dlsym(3) is not safe in a signal handler,
//! and setuid(2) is.
//!
//! Source: dlsym(3), `RTLD_NEXT`.

use corewalk_base::primitives::atomic::{AtomicPtr, Ordering};
use std::ffi::{CStr, c_void};

/// A function of the same name further on in the search order.
pub(crate) struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Returns the address, or null if nobody else defines the function.
    pub(crate) fn address(&self) -> *mut c_void {
        // ORDERING: Relaxed. The same address whoever looks it up; nothing is published with it.
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        let address = crate::lookup::next_of(self.name);
        // ORDERING: Relaxed. As above.
        self.address.store(address, Ordering::Relaxed);
        address
    }

    /// Returns the address, or none with errno set if nobody else defines the function.
    pub(crate) fn found(&self) -> Option<*mut c_void> {
        let address = self.address();
        if address.is_null() {
            crate::errno::set(rustix::io::Errno::NOSYS);
            return None;
        }
        Some(address)
    }
}
