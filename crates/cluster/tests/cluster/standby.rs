//! A primary that is killed, and a standby that takes over.
//!
//! The environment variable `COREWALK_TAKEOVERS` sets the number of takeovers.

use std::time::Duration;

use crate::database::survive;
use crate::fixtures::{Pair, takeovers};

const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn mount_goes_on_with_the_standby_and_nothing_that_was_confirmed_is_lost() {
    let Some((mut pair, site)) = Pair::new() else { return };
    let longest = survive(&site, takeovers(), || pair.take_over());
    println!("the mount went on after at most {longest:.1?}");
    assert!(longest < LIMIT, "{longest:?}");
}
