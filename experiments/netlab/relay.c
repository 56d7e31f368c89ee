/* The wire between the hosts of the laboratory: every packet is delivered a fixed time after it was sent.
 *
 *     relay DEVICE BITS_PER_SECOND DELAY_US JITTER_US PID...
 *
 * Makes a TUN device DEVICE in the network namespace of each process PID, prints "ready" when all are there, and
 * then carries IPv4 packets between them until it is ended. The k-th process, counted from 1, is the host x.y.z.k:
 * the last byte of the destination tells where a packet goes. A packet of b bytes that is sent at time t arrives at
 *
 *     a = max(t + DELAY_US + uniform(0, JITTER_US), free),     free <- a + 8 b / BITS_PER_SECOND
 *
 * where `free` is when its receiver's link is free again, and 0 BITS_PER_SECOND stand for no limit. So packets to
 * one host keep their order. How fast a host may *send* is not the relay's business: a token bucket on the device
 * (tc) sees to that. Frames of up to 64 KB pass whole, with the checksum left open (IFF_VNET_HDR), which is what
 * makes gigabits possible.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_HOSTS = 250,
    MAX_FRAME = 65536 + sizeof(struct virtio_net_hdr),
    RING = 64 << 20, /* bytes under way to a host, reserved but used only as needed: 1.4 Gbit/s for 300 ms */
    SPACE = 65792,   /* the most that a frame takes there */
    BATCH = 64,      /* frames read from a host before the others get their turn */
};

struct frame {
    int64_t due; /* ns, CLOCK_MONOTONIC */
    uint32_t length;
    uint32_t stride; /* bytes to the next frame in the ring; 0: it is at the ring's start */
    unsigned char data[];
};

struct host {
    int device;
    unsigned char *ring; /* what is under way to it */
    size_t head, tail;   /* the oldest frame, and where the next one goes; equal when empty */
    int64_t free;        /* when its link is */
};

_Static_assert(SPACE >= (sizeof(struct frame) + MAX_FRAME + 15) / 16 * 16, "a frame must fit");

static struct host hosts[MAX_HOSTS];
static int count;
static int64_t delay_ns, jitter_ns;
static double ns_per_byte;

static void fail(const char *what)
{
    fprintf(stderr, "relay: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static struct frame *at(struct host *h, size_t place)
{
    return (struct frame *)(h->ring + place);
}

/* Whether one frame more fits. A frame starts at least 2 SPACE before the end of the ring, or at 0: so the one
 * before it may have to jump to 0, which must not be where the oldest is. */
static int has_room(const struct host *h)
{
    if (h->tail >= h->head)
        return RING - h->tail > 3 * SPACE || h->head > 0;
    return h->head - h->tail > SPACE;
}

/* Open DEVICE in the namespace of `pid`, and come back to the relay's own. */
static int open_device(const char *name, const char *pid, int home)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%s/ns/net", pid);
    const int there = open(path, O_RDONLY | O_CLOEXEC);
    if (there < 0 || setns(there, CLONE_NEWNET))
        fail(path);
    close(there);

    const int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (device < 0)
        fail("/dev/net/tun");
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR};
    snprintf(request.ifr_name, IFNAMSIZ, "%s", name);
    if (ioctl(device, TUNSETIFF, &request))
        fail("TUNSETIFF");
    int header = sizeof(struct virtio_net_hdr);
    if (ioctl(device, TUNSETVNETHDRSZ, &header))
        fail("TUNSETVNETHDRSZ");
    if (ioctl(device, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4))
        fail("TUNSETOFFLOAD");

    if (setns(home, CLONE_NEWNET))
        fail("setns");
    return device;
}

/* Deliver what is due; the time at which the next frame is, or INT64_MAX. */
static int64_t deliver(struct host *h, int64_t t)
{
    while (h->head != h->tail) {
        const struct frame *f = at(h, h->head);
        if (f->due > t)
            return f->due;
        /* What the receiver's kernel has no memory for is lost, as on a real network. */
        const ssize_t written = write(h->device, f->data, f->length);
        (void)written;
        h->head = f->stride ? h->head + f->stride : 0;
    }
    return INT64_MAX;
}

/* Put a frame that was sent just now on its way; lost where 64 MB are on theirs already. */
static void forward(const unsigned char *data, size_t length)
{
    const unsigned char *ip = data + sizeof(struct virtio_net_hdr);
    if (length < sizeof(struct virtio_net_hdr) + 20 || ip[0] >> 4 != 4 || ip[19] < 1 || ip[19] > count)
        return; /* not IPv4, or to nobody */
    struct host *h = &hosts[ip[19] - 1];
    if (!has_room(h))
        return;
    int64_t due = now() + delay_ns + (jitter_ns ? (int64_t)(drand48() * (double)jitter_ns) : 0);
    if (due < h->free)
        due = h->free;
    h->free = due + (int64_t)(ns_per_byte * (double)(length - sizeof(struct virtio_net_hdr)));

    struct frame *f = at(h, h->tail);
    const size_t stride = (sizeof(struct frame) + length + 15) / 16 * 16;
    const size_t next = h->tail + stride;
    const int wraps = RING - next <= 2 * SPACE;
    f->due = due;
    f->length = (uint32_t)length;
    f->stride = wraps ? 0 : (uint32_t)stride;
    memcpy(f->data, data, length);
    h->tail = wraps ? 0 : next;
}

static void collect(const struct host *h)
{
    static unsigned char frame[MAX_FRAME];
    for (int i = 0; i < BATCH; i++) {
        const ssize_t length = read(h->device, frame, sizeof frame);
        if (length <= 0)
            return;
        forward(frame, (size_t)length);
    }
}

int main(int argc, char **argv)
{
    count = argc - 5;
    if (count < 1 || count > MAX_HOSTS) {
        fprintf(stderr, "usage: relay DEVICE BITS_PER_SECOND DELAY_US JITTER_US PID... (1 to %d)\n", MAX_HOSTS);
        return 2;
    }
    const double rate = atof(argv[2]);
    ns_per_byte = rate > 0 ? 8e9 / rate : 0;
    delay_ns = (int64_t)(atof(argv[3]) * 1000);
    jitter_ns = (int64_t)(atof(argv[4]) * 1000);

    const int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (home < 0)
        fail("/proc/self/ns/net");
    for (int i = 0; i < count; i++) {
        hosts[i].device = open_device(argv[1], argv[5 + i], home);
        hosts[i].ring = mmap(NULL, RING, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (hosts[i].ring == MAP_FAILED)
            fail("mmap");
    }

    /* On time even where all cores compute: the relay needs little time, but at once. */
    const struct sched_param urgent = {.sched_priority = 1};
    if (sched_setscheduler(0, SCHED_FIFO, &urgent))
        fprintf(stderr, "relay: no real-time priority: %s\n", strerror(errno));
    prctl(PR_SET_TIMERSLACK, 1);
    puts("ready");
    fflush(stdout);

    struct pollfd waits[MAX_HOSTS];
    for (;;) {
        int64_t next = INT64_MAX;
        const int64_t t = now();
        for (int i = 0; i < count; i++) {
            const int64_t due = deliver(&hosts[i], t);
            next = due < next ? due : next;
            waits[i] = (struct pollfd){.fd = hosts[i].device, .events = POLLIN};
        }
        struct timespec rest = {0}, *timeout = NULL;
        if (next != INT64_MAX) {
            const int64_t left = next - now() > 0 ? next - now() : 0;
            rest = (struct timespec){left / 1000000000, left % 1000000000};
            timeout = &rest;
        }
        if (ppoll(waits, (nfds_t)count, timeout, NULL) > 0)
            for (int i = 0; i < count; i++)
                if (waits[i].revents & POLLIN)
                    collect(&hosts[i]);
    }
}
