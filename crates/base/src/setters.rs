//! Setters for structs that may get more fields.
//!
//! A struct that may get more fields is `#[non_exhaustive]`, so another crate begins with a
//! constructor and calls one setter per field. All setters have the same body, so a macro writes
//! them.

/// Adds a method for each named field. The method returns the struct with that field set.
///
/// # Examples
/// ```
/// #[derive(Default)]
/// #[non_exhaustive]
/// pub struct Options {
///     pub size_bytes: Option<u64>,
/// }
///
/// impl Options {
///     corewalk_base::setters! {
///         with_size_bytes: size_bytes = impl Into<Option<u64>>;
///     }
/// }
///
/// assert_eq!(Options::default().with_size_bytes(4096).size_bytes, Some(4096));
/// assert_eq!(Options::default().with_size_bytes(None).size_bytes, None);
/// ```
#[macro_export]
macro_rules! setters {
    ($($method:ident: $field:ident = $value:ty;)*) => {$(
        #[doc = concat!(
            "Returns `self` with [`", stringify!($field), "`](Self::", stringify!($field), ") set."
        )]
        #[must_use]
        #[inline]
        pub fn $method(mut self, $field: $value) -> Self {
            self.$field = $field.into();
            self
        }
    )*};
}
