/* A program that speaks pmlib's protocol over its socket, as programs do that were compiled against its C library.
 *
 *   pmlib_client PORT about DEVICE                     list, info, status
 *   pmlib_client PORT live DEVICE FREQUENCY COUNT      live values, COUNT times
 *   pmlib_client PORT measure DEVICE FREQUENCY AGGREGATE MASK SECONDS SETS
 *
 * `measure` prints each set's seconds and joules by line as the library computes them: the mean of a set's values (but
 * for those that are NaN) times the duration that the client itself measured. MASK is the lines as a hexadecimal number; 0 means all.
 */
#include <arpa/inet.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CREATE, START, CONTINUE, STOP, GET, FINALISE, INFO, LIST, STATUS, LIVE };

static void fail(const char *what)
{
    fprintf(stderr, "pmlib_client: %s\n", what);
    exit(1);
}

static int dial(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int link = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (link < 0 || connect(link, (struct sockaddr *)&address, sizeof address) != 0)
        fail("cannot connect");
    return link;
}

static void give(int link, const void *data, size_t size)
{
    if (send(link, data, size, MSG_NOSIGNAL) != (ssize_t)size)
        fail("the server is gone");
}

static void give_int(int link, int value) { give(link, &value, sizeof value); }

static void give_text(int link, const char *text)
{
    give_int(link, (int)strlen(text));
    give(link, text, strlen(text));
}

static void take(int link, void *data, size_t size)
{
    if (recv(link, data, size, MSG_WAITALL) != (ssize_t)size)
        fail("the server has closed");
}

static int take_int(int link)
{
    int value;
    take(link, &value, sizeof value);
    return value;
}

static void print_text(int link)
{
    char text[4096];
    int size = take_int(link);
    if (size < 0 || size >= (int)sizeof text)
        fail("a text of impossible length");
    take(link, text, (size_t)size);
    printf(" %.*s", size, text);
}

static void ask(int link, int request)
{
    give_int(link, request);
    if (take_int(link) != 0)
        fail("refused");
}

static void about(int port, const char *device)
{
    int link = dial(port);
    give_int(link, LIST);
    printf("devices");
    for (int n = take_int(link); n > 0; n--)
        print_text(link);
    close(link);

    link = dial(port);
    give_int(link, INFO);
    give_text(link, device);
    int frequency = take_int(link);
    if (frequency < 0)
        fail("no such device");
    printf("\ninfo %d %d", frequency, take_int(link));
    print_text(link);
    close(link);

    link = dial(port);
    give_int(link, STATUS);
    for (int n = take_int(link); n > 0; n--) {
        printf("\nstatus");
        print_text(link);
        printf(" %d", take_int(link));
        int lines = take_int(link), is_pdu = take_int(link);
        printf(" %d", lines);
        if (!is_pdu)
            print_text(link);
        while (lines-- > 0) {
            float volts;
            printf("\nline %d", take_int(link));
            print_text(link);
            take(link, &volts, sizeof volts);
            print_text(link);
            if (is_pdu)
                print_text(link);
        }
    }
    for (int n = take_int(link); n > 0; n--) {
        printf("\ncounter %d", take_int(link));
        print_text(link);
        for (int lines = take_int(link); lines > 0; lines--)
            printf(" %d", take_int(link));
    }
    printf("\n");
}

static void live(int port, const char *device, int frequency, int count)
{
    int link = dial(port);
    give_int(link, LIVE);
    give_text(link, device);
    give_int(link, frequency);
    if (take_int(link) != 0)
        fail("refused");
    while (count-- > 0) {
        printf("watts");
        for (int lines = take_int(link); lines > 0; lines--) {
            double watts;
            take(link, &watts, sizeof watts);
            printf(" %g", watts);
        }
        printf("\n");
        give_int(link, count > 0);
    }
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void measure(int port, char **words)
{
    uint64_t lines = strtoull(words[3], NULL, 16);
    double length_s = atof(words[4]), lengths_s[16];
    int sets = atoi(words[5]), link = dial(port);
    unsigned char mask[16] = {0};
    if (sets < 1 || sets > 16)
        fail("1 to 16 sets");
    for (int i = 0; i < 8; i++)
        mask[i] = (unsigned char)(lines >> 8 * i);
    give_int(link, CREATE);
    give_text(link, words[0]);
    give_int(link, atoi(words[1]));
    give_int(link, atoi(words[2]));
    give_int(link, (int)sizeof mask);
    give(link, mask, sizeof mask);
    if (take_int(link) != 0)
        fail("no counter");
    for (int set = 0; set < sets; set++) {
        ask(link, set == 0 ? START : CONTINUE);
        double begun_s = now_s();
        printf("begun\n");
        fflush(stdout);
        usleep((useconds_t)(length_s * 1e6));
        ask(link, STOP);
        lengths_s[set] = now_s() - begun_s;
    }
    give_int(link, GET);
    int count = take_int(link);
    if (count < 0)
        fail("no data");
    int ends = take_int(link), of_device = take_int(link), rows = 1, indices[17];
    if (ends != sets + 1)
        fail("other sets than were made");
    take(link, indices, (size_t)ends * sizeof *indices);
    if (indices[sets] > 0 && count % indices[sets] == 0)
        rows = count / indices[sets];
    double *values = malloc((size_t)count * sizeof *values);
    take(link, values, (size_t)count * sizeof *values);
    for (int row = 0; row < rows; row++)
        for (int set = 0; set < sets; set++) {
            double sum = 0;
            int n = indices[set + 1] - indices[set], known = 0;
            for (int i = indices[set]; i < indices[set + 1]; i++)
                if (!isnan(values[row * indices[sets] + i])) {
                    sum += values[row * indices[sets] + i];
                    known++;
                }
            printf("set %d of %d, row %d: %d values %.6f s %.6f J\n", set, of_device, row, n, lengths_s[set],
                   sum / known * lengths_s[set]);
        }
    free(values);
    ask(link, FINALISE);
}

int main(int count, char **words)
{
    if (count == 4 && !strcmp(words[2], "about"))
        about(atoi(words[1]), words[3]);
    else if (count == 6 && !strcmp(words[2], "live"))
        live(atoi(words[1]), words[3], atoi(words[4]), atoi(words[5]));
    else if (count == 9 && !strcmp(words[2], "measure"))
        measure(atoi(words[1]), words + 3);
    else
        fail("unknown arguments: see the first lines of the source");
    return 0;
}
