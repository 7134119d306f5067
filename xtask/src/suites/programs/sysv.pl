# Semaphores and message queues by Perl's own calls and by IPC::Semaphore and IPC::Msg.
#
# These are scenarios of this project, for machines where the tests of the module cannot be had.
use strict;
use warnings;
use Errno qw(EAGAIN ENOENT EEXIST EINVAL EFBIG ERANGE E2BIG ENOMSG EIDRM);
use IPC::SysV qw(IPC_PRIVATE IPC_CREAT IPC_EXCL IPC_NOWAIT IPC_STAT IPC_RMID SEM_UNDO SETVAL
    GETVAL MSG_NOERROR ftok);
use IPC::Semaphore;
use IPC::Msg;
use Test::More;

sub fails($$$) { my ($errno, $done, $what) = @_; ok(!$done && $! == $errno, "$what: $!") }

# A child, which exits with what the code returns.
sub child {
    my $code = shift;
    my $pid = fork // die "fork: $!";
    return $pid if $pid;
    exit $code->();
}
sub status { waitpid(shift, 0); $? >> 8 }

my $sem = IPC::Semaphore->new(IPC_PRIVATE, 3, 0600 | IPC_CREAT) or die "no set: $!";
my $id = $sem->id;
is($sem->stat->nsems, 3, 'number of semaphores');
is($sem->stat->mode & 0777, 0600, 'mode');
is($sem->stat->uid, $>, 'owner');
ok($sem->setall(1, 2, 3), 'SETALL');
is(join(' ', $sem->getall), '1 2 3', 'GETALL');
ok($sem->setval(1, 7), 'SETVAL');
is($sem->getval(1), 7, 'GETVAL');
is($sem->getpid(1), $$, 'GETPID');
ok($sem->op(0, -1, 0, 1, -7, 0), 'two operations at once');
is(join(' ', $sem->getall), '0 0 3', 'both are done');
fails(EAGAIN, $sem->op(2, -1, 0, 0, -1, IPC_NOWAIT), 'one of two does not fit');
is($sem->getval(2), 3, 'none is done');
ok($sem->op(0, 0, 0), 'wait for zero');
fails(EFBIG, $sem->op(3, 1, 0), 'a semaphore that there is not');
fails(ERANGE, $sem->op(2, 32767, 0), 'too large a value');
fails(ERANGE, semctl($id, 0, SETVAL, 40000), 'SETVAL of it');
fails(EINVAL, semctl($id, 9, GETVAL, 0), 'GETVAL of a semaphore that there is not');
fails(EINVAL, semop($id + 32768, pack('s3', 0, 1, 0)), 'an id of another generation');

is(status(child(sub { $sem->op(1, 5, SEM_UNDO) && $sem->getval(1) == 5 ? 0 : 1 })), 0, 'undo: taken');
is($sem->getval(1), 0, 'undo: given back');

my $waiter = child(sub { $sem->op(0, -2, 0) ? 0 : 1 });
select undef, undef, undef, 0.01 until $sem->getncnt(0) == 1;
pass('a child waits');
ok($sem->op(0, 2, 0), 'what it waits for');
is(status($waiter), 0, 'it goes on');
is($sem->getpid(0), $waiter, 'it was the last one');

my $removed = child(sub { !$sem->op(0, -1, 0) && $! == EIDRM ? 0 : 1 });
select undef, undef, undef, 0.01 until $sem->getncnt(0) == 1;
ok($sem->remove, 'the set is removed');
is(status($removed), 0, 'who waits is told');
fails(EINVAL, $sem->stat, 'the set has gone');

my $key = ftok($0, 7);
my $msg = IPC::Msg->new($key, 0600 | IPC_CREAT | IPC_EXCL) or die "no queue: $!";
fails(EEXIST, IPC::Msg->new($key, 0600 | IPC_CREAT | IPC_EXCL), 'the key is taken');
is(IPC::Msg->new($key, 0)->id, $msg->id, 'the key finds it');
ok($msg->snd($_->[0], $_->[1]), "send $_->[1]") for [3, 'three'], [1, 'one'], [2, 'two'];
is($msg->stat->qnum, 3, 'three messages');
my $text;
is($msg->rcv($text, 100, 1), 1, 'of type one');
is($text, 'one', 'its text');
is($msg->rcv($text, 100, -2), 2, 'the lowest type');
fails(E2BIG, $msg->rcv($text, 2, 0), 'too long');
is($msg->rcv($text, 2, 0, MSG_NOERROR), 3, 'cut');
is($text, 'th', 'what is left of it');
fails(ENOMSG, $msg->rcv($text, 100, 0, IPC_NOWAIT), 'none');

my $echo = child(sub {
    for (1 .. 100) {
        $msg->rcv(my $got, 8192, 1) == 1 or return 1;
        $msg->snd(2, scalar reverse $got) or return 2;
    }
    return 0;
});
my $echoed = 0;
for my $round (1 .. 100) {
    my $said = 'x' x ($round * 80) . $round;
    $msg->snd(1, $said) or last;
    $msg->rcv($text, 9000, 2) or last;
    $echoed++ if $text eq scalar reverse $said;
}
is($echoed, 100, 'a hundred messages there and back');
is(status($echo), 0, 'the other end is well');
is($msg->stat->lspid, $echo, 'who sent last');
ok($msg->remove, 'the queue is removed');
fails(ENOENT, IPC::Msg->new($key, 0), 'the key finds nothing');
done_testing;
