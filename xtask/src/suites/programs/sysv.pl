# Tests of semaphores and message queues, by built-in functions of Perl, IPC::Semaphore and IPC::Msg.
#
# They run on machines that cannot download the tests of the module IPC::SysV.
use strict;
use warnings;
use Errno qw(EAGAIN ENOENT EEXIST EINVAL EFBIG ERANGE E2BIG ENOMSG EIDRM);
use IPC::SysV qw(IPC_PRIVATE IPC_CREAT IPC_EXCL IPC_NOWAIT IPC_STAT IPC_RMID SEM_UNDO SETVAL
    GETVAL MSG_NOERROR ftok);
use IPC::Semaphore;
use IPC::Msg;
use Test::More;

sub fails($$$) { my ($errno, $done, $what) = @_; ok(!$done && $! == $errno, "$what: $!") }

# Forks a child that runs the code and exits with its result.
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
ok($sem->op(0, -1, 0, 1, -7, 0), 'two operations in one call');
is(join(' ', $sem->getall), '0 0 3', 'both take effect');
fails(EAGAIN, $sem->op(2, -1, 0, 0, -1, IPC_NOWAIT), 'the second of two operations would block');
is($sem->getval(2), 3, 'the first takes no effect');
ok($sem->op(0, 0, 0), 'wait for zero');
fails(EFBIG, $sem->op(3, 1, 0), 'semop of a missing semaphore');
fails(ERANGE, $sem->op(2, 32767, 0), 'semop to too large a value');
fails(ERANGE, semctl($id, 0, SETVAL, 40000), 'SETVAL of too large a value');
fails(EINVAL, semctl($id, 9, GETVAL, 0), 'GETVAL of a missing semaphore');
fails(EINVAL, semop($id + 32768, pack('s3', 0, 1, 0)), 'an id of another generation');

is(status(child(sub { $sem->op(1, 5, SEM_UNDO) && $sem->getval(1) == 5 ? 0 : 1 })), 0, 'SEM_UNDO');
is($sem->getval(1), 0, 'the exit undoes the operation');

my $waiter = child(sub { $sem->op(0, -2, 0) ? 0 : 1 });
select undef, undef, undef, 0.01 until $sem->getncnt(0) == 1;
pass('a child waits');
ok($sem->op(0, 2, 0), 'raise the value');
is(status($waiter), 0, 'the child continues');
is($sem->getpid(0), $waiter, 'the last operation was that of the child');

my $removed = child(sub { !$sem->op(0, -1, 0) && $! == EIDRM ? 0 : 1 });
select undef, undef, undef, 0.01 until $sem->getncnt(0) == 1;
ok($sem->remove, 'the set is removed');
is(status($removed), 0, 'the waiting child gets EIDRM');
fails(EINVAL, $sem->stat, 'stat of the removed set');

my $key = ftok($0, 7);
my $msg = IPC::Msg->new($key, 0600 | IPC_CREAT | IPC_EXCL) or die "no queue: $!";
fails(EEXIST, IPC::Msg->new($key, 0600 | IPC_CREAT | IPC_EXCL), 'IPC_EXCL with a key in use');
is(IPC::Msg->new($key, 0)->id, $msg->id, 'the key finds the queue');
ok($msg->snd($_->[0], $_->[1]), "send $_->[1]") for [3, 'three'], [1, 'one'], [2, 'two'];
is($msg->stat->qnum, 3, 'three messages');
my $text;
is($msg->rcv($text, 100, 1), 1, 'receive type 1');
is($text, 'one', 'its text');
is($msg->rcv($text, 100, -2), 2, 'receive the lowest type up to 2');
fails(E2BIG, $msg->rcv($text, 2, 0), 'the text is longer than the buffer');
is($msg->rcv($text, 2, 0, MSG_NOERROR), 3, 'MSG_NOERROR truncates the text');
is($text, 'th', 'the truncated text');
fails(ENOMSG, $msg->rcv($text, 100, 0, IPC_NOWAIT), 'the queue is empty');

my $echo = child(sub {
    for (1 .. 100) {
        $msg->rcv(my $got, 8192, 1) == 1 or return 1;
        $msg->snd(2, scalar reverse $got) or return 2;
    }
    return 0;
});
my $echoed = 0;
for my $round (1 .. 100) {
    my $sent = 'x' x ($round * 80) . $round;
    $msg->snd(1, $sent) or last;
    $msg->rcv($text, 9000, 2) or last;
    $echoed++ if $text eq scalar reverse $sent;
}
is($echoed, 100, 'a hundred messages to a child and back');
is(status($echo), 0, 'the child has exit status 0');
is($msg->stat->lspid, $echo, 'the last sender is the child');
ok($msg->remove, 'the queue is removed');
fails(ENOENT, IPC::Msg->new($key, 0), 'the key of a removed queue');
done_testing;
