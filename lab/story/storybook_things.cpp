#include "lab/story/storybook_content.h"

namespace mr::story {

// Plots about a thing: lost, made as a gift, broken, or longed for.
const std::string_view kStorybookPlotsOfThings = R"(
# ---- a thing is lost ----------------------------------------------------------------------------
@rule plot_lost
// {lost_wish} {lost_vow} // {lost_search} {pet.grief} // {meet} {talk} {lost_hint} //
  {lost_found} {toy.how}. {pet.glad} {thanks} // {lost_end} {bedtime}

@rule lost_wish
{hero}'s favorite thing was {a toy=toy}. {toy.why}. But {lost_when} it was gone!
{hero} had {a toy=toy}. {toy.why}. But {lost_when} {hero.they} could not find it anywhere!
Nothing was dearer to {hero} than {hero.their} {toy=toy}. {toy.why}. But {lost_when} it was not
  there!

@rule lost_when
one morning
one windy day
after the spring fair
after a long walk
on the first day of May
after supper
right after the thunderstorm
when the guests had gone

@rule lost_vow
"I have to find it," said {hero}.
All {hero} wished for was to have it back.
"Please, please, come back," said {hero}.

@rule lost_search
{^hero.they} looked {place.look1}, but found only {spot1.only}. {^hero.they} looked {place.look2}
  and found {spot2.only}.
First {hero.they} searched {place.look1}, and found {spot1.only}. Then {hero.they} searched
  {place.look2}, and found {spot2.only}.
Was it {place.look1}? No, there was just {spot1.only}. Was it {place.look2}? No, there was just
  {spot2.only}.

@rule lost_hint
"I may have seen it," said the {helper}. "Have you looked {place.look3}?"
"Things like to hide," said the {helper}. "I would try {place.look3}."
The {helper} scratched {helper.their} head. "There is something {place.look3}," {helper.they} said.
"Let us look together," said the {helper}, and they looked {place.look3}.

@rule lost_found
And there it was, the {toy}!
There lay the {toy}, as good as new!
And what did {hero} see? The {toy}!

@rule lost_end
From that day on, {hero} kept the {toy} [beside the bed|on a special shelf|in a safe little box].
When others lost something, {hero} always helped them look.
The wish had come true, and {hero} carried the {toy} home with both arms around it.
That evening {hero} and the {helper} played with the {toy} together.

@table toy: name | why | how
red kite | Papa had made it from an old shirt | The wind had carried it there
stuffed bear | It had slept beside {hero.them} every night | {hero} had set it down there and
  forgotten it
silver whistle | Grandpa had given it to {hero.them} | A magpie had hidden it there
blue ball | It bounced higher than any other | It had rolled there all by itself
wooden boat | {hero} had carved it {hero.self} | The rain had floated it there
yellow scarf | Grandma had knitted it | The wind had carried it there
lucky button | It had come from a sailor's coat | It had rolled there all by itself
music box | It played a tune as soft as snow | {hero} had set it down there and forgotten it
little drum | It went rum-a-tum-tum | It had rolled there all by itself
woolly hat | It was as warm as toast | The wind had carried it there
picture book | It was full of dragons | {hero} had set it down there and forgotten it
toy train | It had a real bell | A little puppy had dragged it there
paper crown | It made {hero.them} feel like a king | The wind had carried it there
glass marble | There was a tiny blue swirl inside | It had rolled there all by itself
striped mitten | It had a twin, and the twin was lonely | A little puppy had dragged it there
golden bell | It rang like laughter | A magpie had hidden it there
rag doll | She had one button eye and a kind smile | A little puppy had dragged it there
spinning top | It hummed when it danced | It had rolled there all by itself
magnifying glass | It made ants look like horses | A magpie had hidden it there
green umbrella | It was big enough for two | The wind had carried it there
tin soldier | He stood very straight on one leg | A magpie had hidden it there
patchwork blanket | It smelled of home | A little puppy had dragged it there
blue kite tail | It was made of ninety ribbons | The wind had carried it there
jumping jack | He danced when the string was pulled | {hero} had set it down there and forgotten it
tin frog | It could hop all by itself | It had hopped there and run down
wooden sword | Not one dragon had ever beaten it | A little puppy had dragged it there
paper lantern | It glowed like a small moon | The wind had carried it there
brass key | Nobody knew what it opened | A magpie had hidden it there
bag of marbles | Each marble had a name | A mouse had chewed a hole and rolled it there
straw hat | It had a daisy on the brim | The wind had carried it there
wooden duck | It quacked when it was pulled | The rain had floated it there
snail shell | The sea was singing inside | A curious crow had carried it there
pocket mirror | It could throw a spot of sun | A magpie had hidden it there
feather pen | It had written one poem | The wind had carried it there
toy rabbit | One of its ears was longer than the other | A little puppy had dragged it there
compass | It always knew the way home | {hero} had set it down there and forgotten it
cork boat | It had sailed through every puddle | The rain had floated it there
red mitten | It had been to the top of the hill | A curious crow had carried it there

# ---- a gift for somebody ------------------------------------------------------------------------
@rule plot_gift
// {gift_wish} // {gift_try} {despair} // {meet} {talk} {gift_tip} //
  {gift_make} {gift_give} {pet.may_joy} // {gift_end} {bedtime}

@rule gift_wish
Tomorrow was {dear=dear}'s birthday, and {hero} wished to give {dear.them} the best present in the
  world.
It was almost {dear=dear}'s birthday. "I want to make {dear.them} something special," said {hero}.
{hero} loved {dear=dear} very much and wanted to surprise {dear.them} with a birthday present.

@rule gift_try
First {hero} tried to {plan1=plan}, but {plan1.fail}. Then {hero.they} tried to {plan2=plan!plan1},
  but {plan2.fail}.
{hero} wanted to {plan1=plan}, but {plan1.fail}. So {hero.they} tried to {plan2=plan!plan1}, but
  {plan2.fail}.

@rule gift_tip
"The best gift comes from the heart," said the {helper}. "Why not {idea=idea}?"
"It does not have to be grand," said the {helper}. "You could {idea=idea}."
"What does {dear} like best?" asked the {helper}. "Perhaps you could {idea=idea}."

@rule gift_make
{hero} worked until the [sun went down|stars came out|lamp burned low].
The {helper} helped a little, and soon it was done.
It took all afternoon, and {hero} hummed the whole time.

@rule gift_give
The next morning, {idea.give}. {dear} [laughed|cried happy tears|clapped] and hugged {hero.them}
  tight.
At breakfast, {idea.give}. "Oh, {hero}!" said {dear}. "It is perfect."
When the day came, {idea.give}. "This is the best present of all," said {dear}.

@rule gift_end
{dear} {idea.keep}.
It had been the best present in the world, just as {hero} had wished.
{hero} knew now that love is the best part of any present.
And the {helper} got the biggest slice of birthday cake.

@table dear: name | them
Mama | her
Papa | him
Grandma | her
Grandpa | him
Aunt Rosemary | her
Uncle Bert | him
Cousin Nell | her
Mrs. Finch | her
Mr. Potter | him
Great-Aunt Olga | her
Captain Birch | him
Miss Pringle | her
Uncle Fernando | him

@table plan: do | fail
bake a cake | it came out as flat as a pancake
pick a bunch of flowers | the goat ate every one of them
knit a scarf | the wool turned into one big knot
paint a picture | the paint spilled all over the floor
build a birdhouse | {hero.they} hit {hero.their} thumb with the hammer
catch a fish | the fish laughed and swam away
string a necklace | the beads rolled under the cupboard
sew a pillow | all the feathers flew out
make some jam | the pot boiled over
carve a spoon | it broke in two
buy a golden ring | there was only one penny in {hero.their} pocket
blow up a balloon | it popped with a bang
fold a paper crane | it looked more like a crumpled frog
weave a basket | the bottom fell out
melt chocolate hearts | the dog licked the bowl
plant a rose | there were only thorns on it
tie a bouquet of balloons | they floated over the roof
frame a drawing | the glass cracked from side to side
learn a waltz | {hero.their} feet argued with each other
mold a clay vase | it leaned like a tired sailor
stitch a tablecloth | {hero.they} sewed it to {hero.their} own sleeve
bake gingerbread | it was as hard as a roof tile
polish some shoes | the polish went on the cat
train a parrot to speak | it would only say the word no

@table idea: do | give | keep
sing a song that you made up | {hero} stood on a chair and sang a song about all the things they
  did together
  | hummed that song for the rest of the year
write a letter | {hero} put a letter on the plate, with a heart drawn at the bottom
  | kept the letter under the pillow forever
make breakfast in bed | {hero} carried in toast with honey and a daisy in a cup
  | said that no king ever ate so well
draw a map of all your favorite places | {hero} unrolled a map with every place where they had
  been happy
  | hung the map over the fireplace
plan a picnic under the trees | {hero} spread a blanket under the trees, with bread and cherries
  | wanted a picnic every year after that
put on a puppet show | {hero} put on a show with socks for puppets and a king made from a spoon
  | laughed about the sock king for weeks
give a box of kind words | {hero} brought a box with a kind word on every slip of paper
  | read one kind word every night
tell the story of the day you met | {hero} told the story of the day they first met
  | asked to hear that story every birthday
make a lantern from a jar | {hero} lit a jar with paper stars all around it
  | lit the lantern every evening
polish an old treasure until it shines | {hero} brought out the old silver teapot, shining like
  the moon
  | made tea in it every day
pick up every toy and sweep the whole house | {hero} opened the door to a house that shone like
  a new penny
  | could hardly believe it was the same house
collect a color from every season | {hero} laid out a petal, a leaf, a shell and a snowy feather
  | kept the four colors in a glass bowl
make a crown of paper and leaves | {hero} brought in a crown of gold paper and leaves on a cushion
  | wore the crown to the market
count all the reasons why you are glad | {hero} read out one hundred reasons to be glad
  | asked for the hundred reasons again and again
paint a stone for the garden | {hero} brought a round stone with a smiling sun on it
  | put the stone beside the front door
plant a tree with a name | {hero} led the way to a tiny tree with a name tag
  | watered the little tree every evening

# ---- something is broken ------------------------------------------------------------------------
@rule plot_broken
// {broken_how} {broken_wish} // {broken_hide} {broken_feel} // {meet} {talk}
  {broken_tip} // {broken_tell} {broken_forgive} // {ware.mend}. {pet.may_joy}
  {broken_end} {bedtime}

@rule broken_how
{one_day}, {hero} was playing indoors when crash! {owner=owner}'s {ware=ware} fell and broke.
{one_day}, {hero} ran too fast and bumped into {owner=owner}'s {ware=ware}. Crack! It broke.
{one_day}, {hero} only wanted to look at {owner=owner}'s {ware=ware}, but it slipped and broke.

@rule broken_wish
"I wish nobody would ever find out," {hero} whispered.
{hero} wished that [nobody would know|it had never happened].

@rule broken_hide
So {hero.they} hid the pieces {hideout}.
Quickly {hero.they} put the pieces {hideout} and said nothing.

@rule hideout
under the bed
behind the stove
in an old boot
inside the flowerpot
at the bottom of the toy box
under the rug
in the woodpile
behind the curtain
down in the laundry basket
inside the piano
up on the wardrobe
under a loose board
in the dog's basket
behind the coats

@rule broken_feel
But all day long, {hero.their} tummy [hurt|felt heavy|felt full of stones].
But the secret grew [heavier|bigger] and [heavier|bigger] with every hour.
But at supper even the soup tasted [gray|of nothing|sad].

@rule broken_tip
"A secret like that is heavy," said the {helper}. "Tell the truth, and it will fly away."
"Everybody breaks something once," said the {helper}. "It is how you mend it that counts."
"I think you know what to do," said the {helper} with a [smile|wink|nod].

@rule broken_tell
{hero} went home and said, "{owner}, I broke your {ware}. I am sorry."
With {hero.their} ears burning, {hero} told {owner} the truth.
"It was me," {hero} said to {owner}, and {hero.they} showed {owner.them} the pieces.

@rule broken_forgive
"Thank you for telling me," said {owner}, and hugged {hero.them}.
"That took courage," said {owner}, and {owner.they} was not angry at all.
{owner} sighed, and then {owner.they} smiled. "A {ware} is only a {ware}, but you are my {hero}."

@rule broken_end
// {hero} no longer wished to hide. The truth felt much better than a secret.
// After that, {hero} walked more slowly and never kept a heavy secret again.
// {hero} had wished that nobody would know, and now {hero.they} was happy to have told.

@table owner: name | they | them
Mama | she | her
Papa | he | him
Grandma | she | her
Grandpa | he | him
Aunt Hattie | she | her
Uncle Fritz | he | him

@table ware: name | mend
blue teacup | Together they glued it, and now it had a fine gold line like a river
flower vase | Together they glued it and filled it with dandelions
picture frame | Together they nailed it, and the picture hung only a little crooked
snow globe | Together they put the tiny house on the windowsill, where real snow fell
music box | Together they turned the little screws until it played again
reading lamp | Together they made a new shade out of colored paper
cookie jar | Together they glued it, and then they baked cookies to test it
clay bird | Together they glued it, and now it looked as if it were just about to fly
garden gnome | Together they painted over the crack, and gave the gnome a new red coat
china plate | Together they made the pieces into a sun on the garden wall
wooden clock | Together they put back the hands, and it ticked louder than before
kite with the long tail | Together they patched it, and it flew higher than before
sugar bowl | Together they glued it, and the sugar never noticed
bird feeder | Together they screwed it tight, and the first finch came at noon
rocking chair | Together they carved a new leg, and it rocked without a squeak
straw lampshade | Together they wove it again, and the light made stripes on the wall
reading glasses | Together they bent the wire back, and the letters stopped dancing
hand mirror | Together they laid the pieces in a frame, and now it showed ten smiles
soup tureen | Together they riveted the lid, and the soup was as hot as before
cuckoo clock | Together they mended the spring, and the cuckoo bowed twice
wooden horse | Together they pegged on the leg, and it stood firmer than ever
blue jug | Together they filled the crack with gold, and it sparkled

# ---- a prize in the shop window, and a wish that changes ----------------------------------------
@rule plot_prize
// {prize_wish} // {prize_work} {prize_enough} // {prize_way} {needy=needy.who}. {needy.need}.
  {prize_think} {needy.give}. // {needy.joy}. {prize_later} {needy.gain}. {pet.glad} //
  {prize_end} {bedtime}

@rule prize_wish
In the window of {shop} there was {a prize=prize}, and {hero} wished for it more than anything.
{one_day}, {hero} saw {a prize=prize} in the window of {shop}. "I wish it were mine," {hero.they}
  said.
{hero} dreamed of {a prize=prize} that stood in the window of {shop}. But it cost twenty coins!

@rule shop
the toy shop
the corner store
old Mr. Bell's shop
the peddler's cart
the market hall
Mrs. Plum's shop
the clockmaker's shop
the bazaar
the old pawnshop
Goodwin and Sons

@rule prize_work
So {hero.they} {chore1=chore} and {chore2=chore!chore1}, and saved every coin in {jar}.
All summer {hero.they} {chore1=chore}, and in the fall {hero.they} {chore2=chore!chore1}. The coins
  went into {jar}.
{^hero.they} {chore1=chore} and {chore2=chore!chore1}, and kept the coins in {jar}.

@rule jar
a [jam jar|tin box|wool sock|cracked teapot|little blue purse|clay pig|matchbox|coconut shell]
an [old boot|empty honey pot|oyster shell|iron kettle]

@rule prize_enough
At last there was enough.
One fine day {hero.they} counted, and there was just enough.
Clink, clink, clink, the last coin fell in.

@rule prize_way
On the way to the shop, {hero} met
Off to the shop went {hero}. But on the road sat
Halfway to the shop, {hero} came upon

@rule prize_think
{hero} thought of the {prize}. Then {hero.they}
{hero} looked at the coins for a long time. In the end {hero.they}
The {prize} could wait. {hero}

@rule prize_later
{hero} went home with an empty pocket and a full heart. And
{hero} had no coins left, but {hero.they} whistled. And
The {prize} stayed in the window, but {hero} did not mind, for

@rule prize_end
{hero} no longer wished for the {prize}. {^hero.they} had found something better.
The {prize} was only a thing, but a friend is a treasure.
"I am glad I did not buy the {prize}," said {hero}, and {hero.they} meant it.

@table prize: name
rocking horse; red wagon; toy sailboat; shiny trumpet; brass telescope; kite like a dragon
dollhouse; wind-up mouse; box of paints; silver harmonica; pair of roller skates; striped top hat
globe with golden seas; puppet with strings; tin robot; glass unicorn
toy theater; wooden castle; leather football; pair of red boots; bag of gold marbles
paper kite like a fish; sled with brass runners; clockwork train; velvet cape; singing bird in a box
magic lantern; pair of stilts; box of tin soldiers; doll with real hair; fishing rod; painted drum
music stand; chemistry set; spinning globe; toy kitchen; bow with seven arrows; silver flute
silk parasol; tambourine; toy lighthouse; paper mask of a lion; croquet set; wooden yo-yo
pocket watch; bag of firecrackers; plush whale; tin drum; zither; hobby horse; birch canoe
knight's helmet; jar of a hundred buttons; butterfly net; folding knife; snow sled; ship in a bottle

@table chore: did
swept the bakery; carried water for the neighbors; fed the chickens; raked the leaves
picked cherries; washed the windows; weeded the garden; polished the church bell; sold lemonade
walked the baker's dog; stacked the firewood; shined shoes; delivered the newspaper; peeled potatoes
groomed the ponies; picked up windfall apples; scrubbed the steps; wound the wool; tied up the
  vines
collected eggs; sharpened pencils for the school; turned the mill; mended nets; carried parcels
beat the carpets; dug up beets; sorted buttons; cleaned the lamp glass; led the goats to pasture
cracked nuts; whitewashed the fence; caught crayfish; churned butter; plucked weeds from the path
turned the hay; oiled the hinges; scared off the crows; pitted plums; ground the coffee; counted sheep
shelled peas; folded the laundry; sold flowers at the gate; rang the bell at noon; watered the roses

@table needy: who | need | give | joy | gain
a thin gray kitten | It had not eaten for days | bought milk and fish for the kitten
  | The kitten ate and ate, and then it purred
  | the kitten followed {hero.them} home and stayed forever
a boy with no shoes | His feet were blue from the cold | bought him a pair of warm boots
  | The boy stamped and danced in his new boots
  | the next day the boy came to play, and he knew a hundred games
an old woman with a broken cart | All her eggs lay smashed on the road | paid for a new basket of
  eggs
  | The old woman wiped her eyes and smiled
  | every Sunday after that, she baked {hero.them} a sugar cake and told stories
a girl who was crying | She had lost the money for her mother's medicine | gave her all the coins
  | The girl ran to the doctor, and her mother got well
  | the girl came back with her whole family, and they had a great feast together
a musician with a silent fiddle | His last string had snapped | bought him a set of new strings
  | The fiddle began to sing, and everyone came out to dance
  | the musician taught {hero.them} to play, one tune each day
a bird in a tiny cage | It looked at the sky and did not sing | bought the bird and opened the door
  | The bird flew up and up, singing all the way
  | every morning after that, it sang at {hero.their} window
a family whose roof had blown away | They had nothing to keep out the rain | gave them the coins
  for new boards
  | Soon there was a fine new roof, and smoke in the chimney
  | the family had seven children, and each of them became {hero.their} friend
a lost puppy with a sore paw | It could not walk another step | paid the doctor to bandage the paw
  | The puppy licked the doctor, and then it licked {hero}
  | nobody came to look for the puppy, and so it stayed
an old sailor who was far from home | He had no money for the ferry | bought him a ticket
  | The sailor waved from the deck until he was a tiny dot
  | soon a letter came from across the sea, and then one more each month
a circus bear with no honey | He was too sad to dance | bought him the biggest pot of honey
  | The bear licked the pot clean and began to waltz
  | the whole circus gave a show, just for {hero.them}
a peddler with an empty pack | His donkey had run away with everything | paid for a new donkey
  | The peddler sang as he loaded up, and the donkey sang along
  | the peddler came by each spring with a song and a surprise
a hungry fox with three cubs | The snow had covered all the food | bought them a basket of
  sausages
  | The cubs tumbled over each other and ate until they were round
  | on cold nights the fox walked beside {hero.them} all the way home
a girl with a torn coat | The wind blew right through the holes | bought her a coat with a hood
  | The girl pulled up the hood and beamed
  | the girl showed {hero.them} where the wild strawberries grew
a painter with no paints | He had only gray left | bought him every color in the store
  | The painter laughed and painted the whole fence
  | one day there hung a portrait of {hero} in the town hall
a grandmother with a cold stove | She had burned her last log | bought her a cartload of firewood
  | Soon the stove was roaring, and the kettle sang
  | she taught {hero.them} a hundred stories, one for each log
a bricklayer with a broken trowel | He could not finish the school | bought him a trowel of steel
  | Up went the wall, row upon row, before the rain came
  | one of the bricks in the new school had the name of {hero} on it
)";

}  // namespace mr::story
