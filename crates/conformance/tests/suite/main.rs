//! Tests of the conformance suite for back ends. The suite must accept the back ends of this
//! repository, and must find a bug that is planted in a back end.

mod backends;
mod flawed;
mod flaws;
mod memory;
mod mounted;
mod mounted_flaws;
mod site;
