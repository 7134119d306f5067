//! Patterns of the paths that can exist in the test's tree. Each file or directory that renames
//! change is a *variable* (see `judge`), whose value is its present name and parent directory. So
//! the names in a path show the values of variables.

use crate::judge::Seen;

#[derive(Clone, Debug)]
pub(crate) enum Part {
    Names(Vec<u8>),
    /// The names in a path that depend on one variable: the index of the variable, and the possible
    /// names.
    ///
    /// Each possibility has a mask of the values of the variable that lead to it (one bit per
    /// value).
    One(usize, Vec<(u8, Vec<Part>)>),
}

pub(crate) fn names(names: &str) -> Part {
    Part::Names(names.as_bytes().to_vec())
}

/// Returns a part of a pattern that is `forms[n]` if the variable has the value `n`.
pub(crate) fn one(variable: usize, forms: impl IntoIterator<Item = Vec<Part>>) -> Part {
    let bit = |(value, parts): (usize, _)| (1_u8 << value, parts);
    Part::One(variable, forms.into_iter().enumerate().map(bit).collect())
}

/// Removes from `seen` all states that `path` excludes. Returns None if `path` does not match,
/// because such a path never existed.
pub(crate) fn read(parts: &[Part], path: &[u8], mut seen: Seen) -> Option<Seen> {
    let rest = take(parts, path, &mut seen)?;
    rest.is_empty().then_some(seen)
}

fn take<'p>(parts: &[Part], path: &'p [u8], seen: &mut Seen) -> Option<&'p [u8]> {
    let mut rest = path;
    for part in parts {
        rest = match part {
            Part::Names(names) => {
                let rest = rest.strip_prefix(&names[..])?;
                rest.first().is_none_or(|&next| next == b'/').then_some(rest)?
            }
            Part::One(variable, forms) => {
                let (values, rest) = forms.iter().find_map(|(values, parts)| {
                    let mut inside = *seen;
                    let rest = take(parts, rest, &mut inside)?;
                    *seen = inside;
                    Some((values, rest))
                })?;
                seen[*variable] &= values;
                rest
            }
        };
    }
    Some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::{ANY, VARIABLES};

    #[test]
    fn path_shows_the_values_of_its_names() {
        let inner = one(1, [vec![names("/x")], vec![names("/xx")]]);
        let outer = one(0, [vec![inner, names("/m")], vec![names("/q/m")]]);
        let parts = [outer, names("/f")];
        let seen = |path: &str| {
            read(&parts, path.as_bytes(), [ANY; VARIABLES]).map(|seen| (seen[0], seen[1]))
        };
        assert_eq!(seen("/x/m/f"), Some((1, 1)));
        assert_eq!(seen("/xx/m/f"), Some((1, 2)));
        assert_eq!(seen("/q/m/f"), Some((2, ANY)));
        for wrong in ["", "/", "/x/m", "/x/m/f/", "/x/m/ff", "/y/m/f", "/x/q/m/f", "/q/m/fx"] {
            assert_eq!(seen(wrong), None, "{wrong}");
        }
    }
}
