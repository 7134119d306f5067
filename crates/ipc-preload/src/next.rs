//! The functions of the C library that this library interposes.
//!
//! They are looked up once, when the library is loaded: dlsym(3) is not safe in a signal handler,
//! and setuid(2) is.
//!
//! Source: dlsym(3), `RTLD_NEXT`.

use corewalk_base::primitives::atomic::{AtomicPtr, Ordering};
use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::mem::transmute_copy;

/// A function of the type `F` further on in the search order.
pub(crate) struct Next<F> {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
    function: PhantomData<F>,
}

impl<F: Copy> Next<F> {
    /// Returns the function of a name, which is not looked up yet.
    ///
    /// # Safety
    ///
    /// `F` is a pointer to a function, and the type of the function that the C library defines
    /// under this name.
    pub(crate) const unsafe fn new(name: &'static CStr) -> Self {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        Self { name, address: AtomicPtr::new(std::ptr::null_mut()), function: PhantomData }
    }

    /// Returns the address, or null if no other library defines the function.
    pub(crate) fn address(&self) -> *mut c_void {
        // ORDERING: Relaxed. Every thread finds the same address, which publishes nothing.
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        let address = crate::lookup::next_of(self.name);
        // ORDERING: Relaxed. As above.
        self.address.store(address, Ordering::Relaxed);
        address
    }

    /// Returns the function, or none with errno set if no other library defines it.
    pub(crate) fn found(&self) -> Option<F> {
        let address = self.address();
        if address.is_null() {
            crate::errno::set(rustix::io::Errno::NOSYS);
            return None;
        }
        // SAFETY: the function has this type, as `new` demands.
        Some(unsafe { transmute_copy::<*mut c_void, F>(&address) })
    }
}

/// Defines functions of the C library by their names and types, and `look_up`, which looks them up.
macro_rules! next {
    ($($table:ident: fn $name:ident($($kind:ty),*) $(-> $result:ty)?;)*) => {
        $(
            static $table: crate::next::Next<unsafe extern "C" fn($($kind),*) $(-> $result)?> =
                // SAFETY: the C library defines this name with this type.
                unsafe { crate::next::Next::new(crate::lookup::c_name(concat!(stringify!($name), "\0"))) };
        )*

        /// Looks up all of them.
        pub(crate) fn look_up() {
            $($table.address();)*
        }
    };
}

pub(crate) use next;
