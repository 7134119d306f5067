//! The functions of the C library that this library interposes.
//!
//! This library looks up the C library's functions when it is loaded. Their first call may come
//! from a signal handler, where dlsym(3) is not safe.
//!
//! Source: dlsym(3), `RTLD_NEXT`.

use corewalk_base::primitives::atomic::{AtomicPtr, Ordering};
use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::mem::transmute_copy;

pub(crate) struct Next<F> {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
    function: PhantomData<F>,
}

impl<F: Copy> Next<F> {
    /// Returns a [`Next`] for the C library's function `name`. `look_up` stores the function's
    /// address in it when the library is loaded.
    ///
    /// # Safety
    ///
    /// `F` is a function pointer, and its type is that of the C library's function `name`.
    pub(crate) const unsafe fn new(name: &'static CStr) -> Self {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        Self { name, address: AtomicPtr::new(std::ptr::null_mut()), function: PhantomData }
    }

    pub(crate) fn address(&self) -> *mut c_void {
        // ORDERING: Relaxed. Every thread finds the same address of code, and no data is published
        // with it.
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        let address = crate::lookup::next_of(self.name);
        // ORDERING: Relaxed. As above.
        self.address.store(address, Ordering::Relaxed);
        address
    }

    pub(crate) fn found(&self) -> Option<F> {
        let address = self.address();
        if address.is_null() {
            crate::errno::set(rustix::io::Errno::NOSYS);
            return None;
        }
        // SAFETY: the caller of `new` has promised that the function has this type.
        Some(unsafe { transmute_copy::<*mut c_void, F>(&address) })
    }
}

macro_rules! next {
    ($($table:ident: fn $name:ident($($kind:ty),*) $(-> $result:ty)?;)*) => {
        $(
            static $table: crate::next::Next<unsafe extern "C" fn($($kind),*) $(-> $result)?> =
                // SAFETY: the C library defines this name with this type.
                unsafe { crate::next::Next::new(crate::lookup::c_name(concat!(stringify!($name), "\0"))) };
        )*

        /// Looks up the C library's functions that this use of `next!` declares.
        pub(crate) fn look_up() {
            $($table.address();)*
        }
    };
}

pub(crate) use next;
