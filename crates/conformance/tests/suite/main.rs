//! Tests of the conformance suite: it must accept the back ends of this repository, and must find a
//! bug that is planted in one.

mod backends;
mod flawed;
mod flaws;
mod memory;
mod mounted;
mod mounted_flaws;
mod peers;
mod site;
